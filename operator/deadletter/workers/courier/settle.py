"""Settle claims until the settlement is durable: a claim is never skipped, whatever the broker refuses.

When a box refuses a settlement, the courier keeps the claim, the gate pauses with the reason, and the same settlement
is tried again with a growing delay. A connection problem that lasts for five minutes ends the subscription, and the
process opens another one. A letter that is too large is tried once more without the details of its failure.

A message that its box refuses while it takes others is held alone and tried again with longer delays, and the courier
goes on with all other claims. The user must change the limit of the box or remove the message.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deadletter import logs
from deadletter.brokers.contract import Subscription
from deadletter.brokers.errors import BrokerError, Fenced, MessageRefused, TooLarge
from deadletter.brokers.types import Claim, Settlement
from deadletter.workers import metrics
from deadletter.workers.backoff import ExponentialDelay, wait_for_event
from deadletter.workers.courier import letters
from deadletter.workers.courier.broker_access import BrokerAccess
from deadletter.workers.courier.gate import Gate, HeldClaim
from deadletter.workers.environment import MAX_MESSAGE_CHARACTERS

MAX_REFUSAL_S = 300.0
INITIAL_DELAY_S = 0.25
MAX_DELAY_S = 10.0
HELD_INITIAL_DELAY_S = 1.0  # longer than the others: each try reads the state of the partition again
HELD_MAX_DELAY_S = 60.0


@dataclass(slots=True, frozen=True)
class PlannedSettlement:
    """A settlement, and a smaller one in case the box finds it too large."""

    settlement: Settlement
    make_smaller: Callable[[], Settlement] | None = None


class Settler:
    """Settles the claims of one subscription, with retries."""

    def __init__(
        self,
        subscription: Subscription,
        gate: Gate,
        access: BrokerAccess,
        stopping: asyncio.Event,
        labels: tuple[str, str],
    ) -> None:
        self._subscription, self._gate, self._stopping = subscription, gate, stopping
        self._access, self._labels = access, labels
        self._log = logs.get(__name__)

    async def settle(self, claim: Claim, planned: PlannedSettlement) -> bool:
        """Return True when the settlement is durable; False if the claim was lost, or refused while stopping.

        A connection problem that lasts is raised.
        """
        loop = asyncio.get_running_loop()
        unreachable_since: float | None = None
        delay = ExponentialDelay(INITIAL_DELAY_S, MAX_DELAY_S)
        held_delay = ExponentialDelay(HELD_INITIAL_DELAY_S, HELD_MAX_DELAY_S)
        try:
            while self._subscription.holds(claim):
                try:
                    await self._subscription.settle(claim, planned.settlement)
                except Fenced:
                    return False
                except BrokerError as error:
                    if isinstance(error, TooLarge) and planned.make_smaller is not None:
                        planned = PlannedSettlement(planned.make_smaller())
                        continue
                    self._report_refusal(claim, error)
                    if not error.is_connection_problem:
                        unreachable_since = None
                    elif loop.time() - (unreachable_since := unreachable_since or loop.time()) > MAX_REFUSAL_S:
                        raise
                    seconds = (held_delay if isinstance(error, MessageRefused) else delay).next()
                    if await wait_for_event(self._stopping, seconds):
                        return False
                else:
                    self._access.add_success()
                    return True
            return False
        finally:
            self._gate.clear_refusal(claim)

    def _report_refusal(self, claim: Claim, error: BrokerError) -> None:
        reason, message = type(error).__name__, str(error)[:MAX_MESSAGE_CHARACTERS]
        metrics.SETTLEMENTS_REFUSED.labels(*self._labels, reason).inc()
        if isinstance(error, MessageRefused):
            id_ = letters.message_id(claim)
            self._log.warning("message refused by its box, held alone", id=id_, reason=reason, message=message)
            self._gate.hold_alone(claim, HeldClaim(id_, claim.message.size, reason, message))
        else:
            self._log.warning("settlement refused, retrying", reason=reason, message=message)
            self._gate.add_refusal(claim, reason, message)
        self._access.add_failure(error)
