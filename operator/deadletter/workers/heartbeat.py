"""Write the heartbeat of a worker into the ledger, where the operator's sweep reads it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from deadletter import logs
from deadletter.brokers.errors import BrokerError
from deadletter.core.heartbeats import WorkerStatus

HEARTBEAT_INTERVAL_MS = 30_000  # a third of HEARTBEAT_TTL_MS


class StatusWriter:
    """Writes a status when it changes and every 30 s; a failed write is logged and tried again with the next one."""

    def __init__(
        self, write: Callable[[WorkerStatus], Awaitable[None]], delete: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._write, self._delete = write, delete
        self._written: WorkerStatus | None = None
        self._log = logs.get(__name__)

    async def write(self, status: WorkerStatus) -> None:
        """Write the status unless the same one was written less than 30 s ago."""
        if self._written is not None and self._is_current(status, self._written):
            return
        if await self._try(self._write(status)):
            self._written = status

    async def withdraw(self) -> None:
        """Delete the written status."""
        if self._written is not None and self._delete is not None and await self._try(self._delete()):
            self._written = None

    async def _try(self, request: Awaitable[None]) -> bool:
        try:
            await request
        except BrokerError as error:
            self._log.warning("heartbeat not written to the ledger", reason=type(error).__name__)
            return False
        return True

    @staticmethod
    def _is_current(status: WorkerStatus, written: WorkerStatus) -> bool:
        if replace(status, at=0, parked=0) != replace(written, at=0, parked=0):
            return False
        return 0 <= status.at - written.at < HEARTBEAT_INTERVAL_MS  # a clock that was set back causes a write
