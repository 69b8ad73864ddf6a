"""The process of a worker: garbage collection while it runs."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from deadletter.workers import process


class Client:
    """A reference cycle, like a client of a driver and its connection."""

    def __init__(self) -> None:
        self.connection = [self]


@pytest.fixture
def _short_gc_interval(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    thresholds = gc.get_threshold()
    monkeypatch.setattr(process, "GC_INTERVAL_S", 0.01)
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_short_gc_interval")
def test_a_closed_client_is_collected_soon() -> None:
    async def work(_: asyncio.Event) -> int:
        collected = asyncio.Event()
        weakref.finalize(Client(), collected.set)
        await asyncio.wait_for(collected.wait(), 30)
        return 7

    assert process.run(work) == 7
