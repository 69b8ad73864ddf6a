"""HTTP server of the operator for /healthz, /readyz and /metrics."""

import asyncio
import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from deadletter.controller.context import OperatorContext

STUCK_AFTER_S = 300.0
MISSED_RELISTS = 5


def liveness_problem(context: OperatorContext, now: float) -> str:
    """Return what is wrong that a restart may fix, or an empty string."""
    liveness, settings = context.liveness, context.settings
    if now - liveness.swept_at > STUCK_AFTER_S + settings.sweep_seconds:
        return "no sweep finished in the last five minutes"
    if len(context.workqueue) and now - liveness.reconciled_at > STUCK_AFTER_S:
        return "objects wait in the work queue, and none was reconciled in the last five minutes"
    if now - liveness.resynced_at > STUCK_AFTER_S + settings.rejudge_seconds:
        return "the periodic resync is overdue by more than five minutes"
    return ""


def readiness_problem(context: OperatorContext, now: float) -> str:
    """Return why the caches may be out of date, or an empty string."""
    if not context.informers.have_synced:
        return "the informers have not synced yet"
    loop_time = asyncio.get_running_loop().time()
    if loop_time - context.informers.oldest_listed_at > MISSED_RELISTS * context.settings.relist_seconds:
        return "the last list from the API server is too old"
    return liveness_problem(context, now)


async def serve(context: OperatorContext, port: int) -> web.AppRunner:
    """Start the server; `cleanup` of the returned runner stops it."""

    async def healthz(_: web.Request) -> web.Response:
        return _respond(liveness_problem(context, time.monotonic()))

    async def readyz(_: web.Request) -> web.Response:
        return _respond(readiness_problem(context, time.monotonic()))

    async def export_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", export_metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _respond(problem: str) -> web.Response:
    return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)
