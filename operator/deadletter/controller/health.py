"""/healthz, /readyz and /metrics of the operator, and what its probes judge by."""

import asyncio
import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from deadletter.controller.context import OperatorContext

STUCK_AFTER_S = 300.0


def liveness_problem(context: OperatorContext, now: float) -> str:
    """What is wrong so that a restart would help, or nothing."""
    if now - context.liveness.swept_at > STUCK_AFTER_S + context.settings.sweep_seconds:
        return "no sweep was finished for five minutes"
    if len(context.workqueue) and now - context.liveness.reconciled_at > STUCK_AFTER_S:
        return "objects wait and no pass was finished for five minutes"
    if now - context.liveness.resynced_at > STUCK_AFTER_S + context.settings.rejudge_seconds:
        return "nothing was judged for longer than it should be"
    return ""


def readiness_problem(context: OperatorContext, now: float) -> str:
    """Why the operator does not see the cluster as it is, or nothing."""
    if not context.informers.have_synced:
        return "the first list of every kind is not there yet"
    if asyncio.get_running_loop().time() - context.informers.oldest_listed_at > 5 * context.settings.relist_seconds:
        return "the API server was not listed for too long"
    return liveness_problem(context, now)


async def serve(context: OperatorContext, port: int) -> web.AppRunner:
    """Answer until the runner is cleaned up."""

    async def healthz(_: web.Request) -> web.Response:
        return _respond(liveness_problem(context, time.monotonic()))

    async def readyz(_: web.Request) -> web.Response:
        return _respond(readiness_problem(context, time.monotonic()))

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _respond(wrong: str) -> web.Response:
    return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)
