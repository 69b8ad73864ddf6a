"""How long a replayer waits for a broker or a service before another pod has to."""

import asyncio

from deadletter import logs
from deadletter.brokers.errors import BrokerError, BrokerUnreachable

MAX_TRIES = 5
MAX_OUTAGE_TRIES = 60  # ten minutes: a Job would look after a broker's return much later than this pod does
INITIAL_DELAY_S = 1.0
MAX_DELAY_S = 10.0


async def wait_for_event(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not longer than until the stop."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


class RetryBudget:
    """Counts the tries since something last moved."""

    def __init__(self) -> None:
        self._tries = 0
        self._log = logs.get(__name__)

    def wait_after(self, error: Exception, moved: bool = False) -> float:
        """Seconds until the next try; raises the error when there is none."""
        self._tries = 1 if moved else self._tries + 1
        most = MAX_OUTAGE_TRIES if isinstance(error, BrokerUnreachable) else MAX_TRIES
        if self._tries >= most or (isinstance(error, BrokerError) and not error.is_transient):
            raise error
        self._log.warning("going on from the ledger", error=type(error).__name__, message=str(error))
        return min(MAX_DELAY_S, INITIAL_DELAY_S * 2.0 ** (self._tries - 1))
