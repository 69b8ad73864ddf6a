"""The heartbeat that a worker writes into the ledger."""

from dataclasses import replace

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.core.heartbeats import WorkerStatus
from deadletter.workers.heartbeat import HEARTBEAT_INTERVAL_MS, StatusWriter

STATUS = WorkerStatus("pod-0", at=1_000_000)


class Ledger:
    """Keeps what is written, unless it is down."""

    def __init__(self) -> None:
        self.written: list[WorkerStatus | None] = []
        self.is_down = False

    async def write(self, status: WorkerStatus) -> None:
        self._keep(status)

    async def delete(self) -> None:
        self._keep(None)

    def _keep(self, status: WorkerStatus | None) -> None:
        if self.is_down:
            raise BrokerUnreachable("gone")
        self.written.append(status)


async def test_a_status_is_written_on_change_and_every_interval() -> None:
    ledger = Ledger()
    writer = StatusWriter(ledger.write)
    paused = replace(STATUS, paused="CircuitOpen", at=STATUS.at + 2)
    later = replace(paused, at=paused.at + HEARTBEAT_INTERVAL_MS)
    for status in (STATUS, replace(STATUS, at=STATUS.at + 1, parked=7), paused, later):
        await writer.write(status)
    assert ledger.written == [STATUS, paused, later]


async def test_a_clock_that_is_set_back_does_not_stop_the_heartbeats() -> None:
    ledger = Ledger()
    writer = StatusWriter(ledger.write)
    earlier = replace(STATUS, at=STATUS.at - 3_600_000)
    await writer.write(STATUS)
    await writer.write(earlier)
    assert ledger.written == [STATUS, earlier]


async def test_a_failed_write_is_repeated() -> None:
    ledger = Ledger()
    writer = StatusWriter(ledger.write)
    ledger.is_down = True
    await writer.write(STATUS)
    ledger.is_down = False
    await writer.write(STATUS)
    assert ledger.written == [STATUS]


async def test_a_status_is_withdrawn_once() -> None:
    ledger = Ledger()
    writer = StatusWriter(ledger.write, ledger.delete)
    await writer.withdraw()
    await writer.write(STATUS)
    await writer.withdraw()
    await writer.withdraw()
    assert ledger.written == [STATUS, None]
