"""How much a courier carries: bounded, so that a slow service never fills the pod's memory.

At most twice `concurrency` claims that may go or wait for a retry, and those behind them in their keys: eight times
`concurrency` in all. So a key whose first message is retried does not keep the others from being delivered. And at
most 64 MiB of payload, which the last message taken may reach over.

A message that was delivered, or whose verdict is known, is no open claim any more (the desk gathers its settlement
with others), but its bytes count until it is durable.
"""

from deadletter.brokers.types import Claim

MAX_BYTES = 64 << 20
MAX_UNSETTLED = 20_000
MAX_HELD_PER_SLOT = 8  # times the slots


class InFlightClaims:
    """Counts of what is carried."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.held = 0
        self.bytes = 0
        self.unsettled = 0
        self.moves = 0  # whatever was claimed or came to an end: the watchdog's pulse

    def room(self, behind: int) -> int:
        """Claims that may be taken now; none rather than a handful, which costs more than it brings.

        `behind`: those of the held ones that wait for another one of their key.
        """
        free = min(2 * self.slots - self.held + behind, self.spare)
        return free if free * 2 >= self.slots else 0

    @property
    def spare(self) -> int:
        """Claims that may be held on top, whatever those that are held wait for."""
        if self.bytes >= MAX_BYTES or self.unsettled >= MAX_UNSETTLED:
            return 0
        return MAX_HELD_PER_SLOT * self.slots - self.held

    @property
    def free_bytes(self) -> int:
        """Bytes that may be taken now."""
        return MAX_BYTES - self.bytes

    def take(self, claim: Claim) -> None:
        """A claim came in."""
        self.held += 1
        self.bytes += claim.message.size
        self.moves += 1

    def decide(self) -> None:
        """What becomes of a claim is known; its settlement is still under way."""
        self.held -= 1
        self.unsettled += 1

    def settle(self, claim: Claim) -> None:
        """The settlement of a claim is durable, or the claim is no longer ours."""
        self.unsettled -= 1
        self.bytes -= claim.message.size
        self.moves += 1

    def lose(self, claim: Claim) -> None:
        """A claim is no longer ours before anything became of it."""
        self.held -= 1
        self.bytes -= claim.message.size
        self.moves += 1
