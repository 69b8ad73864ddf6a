"""/healthz, /readyz and /metrics of the operator, and what its probes judge by."""

import asyncio
import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from deadletter.controller.context import Operation

STUCK_SECONDS = 300.0


def not_live(operation: Operation, now: float) -> str:
    """What is wrong so that a restart would help, or nothing."""
    if now - operation.pulse.swept_at > STUCK_SECONDS + operation.settings.sweep_seconds:
        return "no sweep was finished for five minutes"
    if len(operation.work) and now - operation.pulse.passed_at > STUCK_SECONDS:
        return "objects wait and no pass was finished for five minutes"
    if now - operation.pulse.judged_at > STUCK_SECONDS + operation.settings.rejudge_seconds:
        return "nothing was judged for longer than it should be"
    return ""


def not_ready(operation: Operation, now: float) -> str:
    """Why the operator does not see the cluster as it is, or nothing."""
    if not operation.snapshots.are_listed:
        return "the first list of every kind is not there yet"
    if asyncio.get_running_loop().time() - operation.snapshots.oldest_list > 5 * operation.settings.relist_seconds:
        return "the API server was not listed for too long"
    return not_live(operation, now)


async def serve(operation: Operation, port: int) -> web.AppRunner:
    """Answer until the runner is cleaned up."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(not_live(operation, time.monotonic()))

    async def readyz(_: web.Request) -> web.Response:
        return _answer(not_ready(operation, time.monotonic()))

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _answer(wrong: str) -> web.Response:
    return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)
