"""Run a worker process: event loop, stop signals, exit code, and tuning of the garbage collector and malloc."""

import asyncio
import ctypes
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

CANCEL_INTERVAL_S = 1.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
GC_THRESHOLD = 100_000  # new objects before the collector runs
GC_INTERVAL_S = 60.0  # the longest time between two collections
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # numbers of malloc.h
MMAP_THRESHOLD_BYTES = 8 << 20
TRIM_THRESHOLD_BYTES = 32 << 20


async def _run_with_signals(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    collecting = asyncio.create_task(_collect_garbage())
    try:
        return await work(stop)
    finally:
        await cancel_and_wait(collecting)


async def _collect_garbage() -> None:
    # A closed driver client is a reference cycle of few objects, which a high threshold would keep for an hour.
    while True:
        await asyncio.sleep(GC_INTERVAL_S)
        gc.collect()


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks until they are done: a driver may swallow a cancellation that coincides with its own timeout."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_INTERVAL_S)


def tune_gc() -> None:
    """Run the collector rarely: reference counts free letters, and scanning thousands takes a fifth of the time."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def tune_malloc() -> None:
    """Make glibc keep freed memory: fetches and batches of a MiB are allocated by the hundred.

    Every page that the kernel provides again costs as much as half a letter. Only glibc has mallopt, and needs it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def run(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Run `work(stop)` and return its exit code. SIGTERM and SIGINT set `stop`; work then ends by itself."""
    tune_gc()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_with_signals(work))
