"""Order per key: one lane per key, one claim of a lane on its way at a time.

A claim that waits for an inline retry keeps its lane; one that is parked or buried frees it. Without order every
claim has a lane of its own. A claim without key has no order to keep, either.
"""

from collections import deque
from collections.abc import Hashable

from deadletter.brokers.values import Claim


class Lanes:
    """Claims that may go now, and those behind them."""

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._behind: dict[Hashable, deque[Claim]] = {}
        self._ready: deque[Claim] = deque()

    def __len__(self) -> int:
        """How many may go now."""
        return len(self._ready)

    def lane_of(self, claim: Claim) -> Hashable:
        """The lane a claim runs in. Partitions keep their own order: one key is in one of them."""
        if not self._ordered or claim.message.key is None:
            return None
        return claim.message.key

    def add(self, claim: Claim) -> None:
        """Line up behind those of the same key."""
        lane = self.lane_of(claim)
        behind = None if lane is None else self._behind.get(lane)
        if behind is not None:
            behind.append(claim)
            return
        if lane is not None:
            self._behind[lane] = deque()
        self._ready.append(claim)

    def take(self) -> Claim:
        """The next that may go; its lane is closed until `free` or `again`."""
        return self._ready.popleft()

    def again(self, claim: Claim) -> None:
        """The same claim may go once more; its lane stays its own."""
        self._ready.append(claim)

    def free(self, claim: Claim) -> None:
        """This claim is done with; the next of its lane may go."""
        lane = self.lane_of(claim)
        if lane is None:
            return
        behind = self._behind[lane]
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[lane]
