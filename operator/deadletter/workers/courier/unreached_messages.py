"""Messages whose last attempt did not reach the service.

Either the message is what breaks the connection, or the service is down for all of them and too few messages came to
open the circuit: at one message a minute each would be buried before the next one comes. So they are tried once more
when the service has answered another message, and from time to time until then. What fails again after an answer is
not the victim of an outage.
"""

import asyncio
from collections.abc import Callable

from deadletter.brokers.types import Claim


class UnreachedMessages:
    """Claims that are held until the service answers; `again` is given those that are tried once more."""

    def __init__(self, again: Callable[[Claim], None]) -> None:
        self._again = again
        self._held: dict[int, tuple[Claim, asyncio.TimerHandle]] = {}
        self._released: dict[int, Claim] = {}

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    def hold(self, claim: Claim, seconds: float) -> bool:
        """Hold a claim for so long or until the service answers; False: it did since the last time, do not wait."""
        if id(claim) in self._released:
            return False
        self._held[id(claim)] = claim, asyncio.get_running_loop().call_later(seconds, self._try_again, claim)
        return True

    def _try_again(self, claim: Claim) -> None:
        del self._held[id(claim)]
        self._again(claim)

    def release(self) -> None:
        """The service answers: try all of them once more."""
        held, self._held = self._held, {}
        for name, (claim, timer) in held.items():
            timer.cancel()
            self._released[name] = claim
            self._again(claim)

    def forget(self, claim: Claim) -> None:
        """What becomes of it is known, or it is no longer ours."""
        self._released.pop(id(claim), None)

    def clear(self) -> None:
        """Stop waiting; they are left unsettled."""
        for _, timer in self._held.values():
            timer.cancel()
        self._held.clear()
