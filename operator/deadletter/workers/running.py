"""How a worker's process begins and ends: its event loop, its signals, its exit code."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

CANCEL_AGAIN_S = 1.0
STOPPING = (signal.SIGTERM, signal.SIGINT)


async def _until_told(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop.set)
    return await work(stop)


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel until they are done: a driver may swallow a cancellation that meets its own timeout."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


def run(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Run `work(stop)` to its end and give its exit code; SIGTERM sets `stop`, and work ends by itself."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_told(work))
