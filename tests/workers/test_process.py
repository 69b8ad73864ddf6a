"""A worker's process: what it leaves behind while it runs for long."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from deadletter.workers import process


class Client:
    """Like the drivers' clients: it and its connection know each other."""

    def __init__(self) -> None:
        self.connection = [self]


@pytest.fixture
def _collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    thresholds = gc.get_threshold()
    monkeypatch.setattr(process, "GC_INTERVAL_S", 0.01)
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_collector")
def test_a_closed_client_does_not_stay_until_thousands_of_objects_came() -> None:
    async def work(_: asyncio.Event) -> int:
        gone = asyncio.Event()
        weakref.finalize(Client(), gone.set)
        await asyncio.wait_for(gone.wait(), 30)
        return 7

    assert process.run(work) == 7
