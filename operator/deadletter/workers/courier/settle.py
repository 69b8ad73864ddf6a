"""Settlements until they are durable: whatever a box says, a claim is never skipped.

When a box refuses, the claim stays in our hands, the gate hears why (and says it), and the same settlement is tried
again with a growing pause. A letter that is too large is tried once more with a smaller envelope, then held: only a
human can make the box larger or take the message away.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deadletter import logs
from deadletter.brokers.contract import Subscription
from deadletter.brokers.errors import BrokerError, Fenced, TooLarge
from deadletter.brokers.types import Claim, Settlement
from deadletter.workers import metrics
from deadletter.workers.courier.gate import Gate

INITIAL_DELAY_S = 0.25
MAX_DELAY_S = 10.0


async def has_come(event: asyncio.Event, seconds: float) -> bool:
    """Did it come within this time?"""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


@dataclass(slots=True)
class PlannedSettlement:
    """A settlement, and a smaller one for a box that finds it too large."""

    how: Settlement
    smaller: Callable[[], Settlement] | None = None


class Settler:
    """Settles at one desk."""

    def __init__(self, desk: Subscription, gate: Gate, stopping: asyncio.Event, namespace: str, queue: str) -> None:
        self._stopping = stopping
        self._desk = desk
        self._gate = gate
        self._where = (namespace, queue)
        self._log = logs.get(__name__)

    async def settle(self, claim: Claim, settling: PlannedSettlement) -> bool:
        """Returns when it is durable: True; or when it is no longer ours, or refused while we stop: False."""
        pause = INITIAL_DELAY_S
        try:
            while self._desk.holds(claim):
                try:
                    await self._desk.settle(claim, settling.how)
                except Fenced:
                    return False
                except BrokerError as error:
                    if isinstance(error, TooLarge) and settling.smaller is not None:
                        settling = PlannedSettlement(settling.smaller())
                        continue
                    self._refused(claim, error)
                    if await has_come(self._stopping, pause):
                        return False
                    pause = min(pause * 2, MAX_DELAY_S)
                else:
                    return True
            return False
        finally:
            self._gate.taken(claim)

    def _refused(self, claim: Claim, error: BrokerError) -> None:
        reason = type(error).__name__
        metrics.SETTLEMENTS_REFUSED.labels(*self._where, reason).inc()
        self._log.warning("a settlement was refused; it is tried again", reason=reason, message=str(error)[:1024])
        self._gate.refused(claim, reason, str(error)[:1024])
