"""Delays between retries: exponential backoff, waits that end early, and the retry budget of a replay."""

import asyncio

from deadletter import logs
from deadletter.brokers.errors import BrokerError, BrokerUnreachable

MAX_TRIES = 5
MAX_OUTAGE_TRIES = 60  # ten minutes: a new pod of the Job would find that the broker is back much later than this one
INITIAL_DELAY_S = 1.0
MAX_DELAY_S = 10.0


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set. Return True if it was set within `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


class ExponentialDelay:
    """A delay that doubles each time, up to a maximum."""

    def __init__(self, initial_s: float, max_s: float) -> None:
        self._initial_s, self._max_s = initial_s, max_s
        self._next_s = initial_s

    def next(self) -> float:
        """Return the seconds to wait now."""
        delay_s = self._next_s
        self._next_s = min(delay_s * 2, self._max_s)
        return delay_s

    def reset(self) -> None:
        """Begin with the initial delay again."""
        self._next_s = self._initial_s


class RetryBudget:
    """Limits how often a worker retries without progress before it leaves the work to the next pod."""

    def __init__(self) -> None:
        self._tries = 0
        self._delay = ExponentialDelay(INITIAL_DELAY_S, MAX_DELAY_S)
        self._log = logs.get(__name__)

    def delay_after(self, error: Exception, has_progressed: bool = False) -> float:
        """Return the seconds until the next try; raise the error if it is not transient or the budget is spent."""
        if has_progressed:
            self._tries = 0
            self._delay.reset()
        self._tries += 1
        max_tries = MAX_OUTAGE_TRIES if isinstance(error, BrokerUnreachable) else MAX_TRIES
        if self._tries >= max_tries or (isinstance(error, BrokerError) and not error.is_transient):
            raise error
        self._log.warning("retrying from the ledger", error=type(error).__name__, message=str(error))
        return self._delay.next()
