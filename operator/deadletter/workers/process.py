"""How a worker's process begins and ends: its event loop, its signals, its exit code."""

import asyncio
import ctypes
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

CANCEL_INTERVAL_S = 1.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
GC_THRESHOLD = 100_000  # objects that may come to live between two looks of the collector
GC_INTERVAL_S = 60.0  # and the longest time
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
MMAP_THRESHOLD_BYTES, KEPT = 8 << 20, 32 << 20


async def _until_told(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    looking = asyncio.create_task(_look_for_cycles())
    try:
        return await work(stop)
    finally:
        await cancel_and_wait(looking)


async def _look_for_cycles() -> None:
    """A closed client of a driver is a cycle: few objects, which a calm collector would leave for an hour."""
    while True:
        await asyncio.sleep(GC_INTERVAL_S)
        gc.collect()


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel until they are done: a driver may swallow a cancellation that meets its own timeout."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_INTERVAL_S)


def tune_gc() -> None:
    """Letters come and go by their counts: looking for cycles among thousands of them costs a fifth of the time."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def tune_malloc() -> None:
    """A fetch and a batch take a MiB each and come and go by the hundred: the C library may give less of it back.

    Every page the kernel gives anew costs as much as half a letter. Only glibc has this word, and needs it.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        tell(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def run(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Run `work(stop)` to its end and give its exit code; SIGTERM sets `stop`, and work ends by itself."""
    tune_gc()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_told(work))
