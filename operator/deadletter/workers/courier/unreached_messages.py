"""Hold messages whose last attempt did not reach the service.

Either the message itself breaks the connection, or the service is down for all messages and too few of them came to
open the circuit: at one message a minute, each would be buried before the next one arrives. Such messages are tried
once more when the service has answered another message, and after `openFor` of the circuit breaker until then. A
message that fails again after an answer is not the victim of an outage.
"""

import asyncio
from collections.abc import Callable

from deadletter.brokers.types import Claim


class UnreachedMessages:
    """Claims that are held until the service answers; `retry` is called with each one to try again."""

    def __init__(self, retry: Callable[[Claim], None]) -> None:
        self._retry = retry
        self._held: dict[int, tuple[Claim, asyncio.TimerHandle]] = {}
        self._released: dict[int, Claim] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, claim: Claim, seconds: float) -> bool:
        """Hold a claim until the service answers, at most `seconds`; False if it answered since the last hold."""
        if id(claim) in self._released:
            return False
        self._held[id(claim)] = claim, asyncio.get_running_loop().call_later(seconds, self._retry_now, claim)
        return True

    def _retry_now(self, claim: Claim) -> None:
        del self._held[id(claim)]
        self._retry(claim)

    def release_all(self) -> None:
        """Retry all held claims, because the service answered."""
        held, self._held = self._held, {}
        for key, (claim, timer) in held.items():
            timer.cancel()
            self._released[key] = claim
            self._retry(claim)

    def forget(self, claim: Claim) -> None:
        """Forget a claim that was decided or lost."""
        self._released.pop(id(claim), None)

    def clear(self) -> None:
        """Stop holding; the claims stay unsettled."""
        for _, timer in self._held.values():
            timer.cancel()
        self._held.clear()
