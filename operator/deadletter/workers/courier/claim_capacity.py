"""Account for the claims a courier holds, so that a slow service cannot fill the pod's memory.

At most twice `concurrency` claims that can be delivered or wait for an inline retry, and those that wait behind them
for the same key: eight times `concurrency` in all. So a key whose first message is retried does not keep other keys
from being delivered. The payload limit is 64 MiB; the last message claimed may exceed it.

A message that was delivered, or whose disposition is decided, is no longer an open claim (the subscription may batch
its settlement with others), but its bytes count until the settlement is durable.
"""

from deadletter.brokers.types import Claim

MAX_BYTES = 64 << 20
MAX_UNSETTLED = 20_000
MAX_HELD_PER_SLOT = 8


class InFlightClaims:
    """Counts of held claims, their bytes and their unfinished settlements."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.held = 0
        self.bytes = 0
        self.unsettled = 0
        self.progress_count = 0  # claims taken and finished, for the watchdog

    def capacity(self, blocked: int) -> int:
        """Return how many claims to take now; 0 if it is only a few, because a request costs more than they bring.

        `blocked` of the held claims wait for another one of their key.
        """
        free = min(2 * self.slots - self.held + blocked, self.spare_capacity)
        return free if free * 2 >= self.slots else 0

    @property
    def spare_capacity(self) -> int:
        """How many more claims may be held, even if all held ones are blocked or wait."""
        if self.bytes >= MAX_BYTES or self.unsettled >= MAX_UNSETTLED:
            return 0
        return MAX_HELD_PER_SLOT * self.slots - self.held

    @property
    def free_bytes(self) -> int:
        """How many bytes of payload may be claimed now."""
        return MAX_BYTES - self.bytes

    def add(self, claim: Claim) -> None:
        """Count a new claim."""
        self.held += 1
        self.bytes += claim.message.size
        self.progress_count += 1

    def mark_decided(self) -> None:
        """Count a claim whose disposition is decided and whose settlement is not durable yet."""
        self.held -= 1
        self.unsettled += 1

    def mark_settled(self, claim: Claim) -> None:
        """Count a claim whose settlement is durable, or that was lost while it was being settled."""
        self.unsettled -= 1
        self.bytes -= claim.message.size
        self.progress_count += 1

    def remove(self, claim: Claim) -> None:
        """Count a claim that was lost before its disposition was decided."""
        self.held -= 1
        self.bytes -= claim.message.size
        self.progress_count += 1
