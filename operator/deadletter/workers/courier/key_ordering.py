"""Order per key: one lane per key, one claim of a lane on its way at a time.

A claim that waits for an inline retry keeps its lane; one that is parked or buried frees it. Without order every
claim has a lane of its own. A claim without key has no order to keep, either.

Fresh messages, those that were never tried, go before retries: three of four turns are theirs while there are any, and
partitions take turns. So bad messages that are tried five times each take little of a busy service away from the good
ones, and a partition that is full of them does not hold up the others.
"""

from collections import deque
from collections.abc import Hashable

from deadletter.brokers.types import Claim

RETRY_TURN_INTERVAL = 4  # one of them is for a retry


class KeyOrderedQueue:
    """Claims that may go now, and those behind them."""

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._behind: dict[Hashable, deque[Claim]] = {}
        self._fresh: dict[int, deque[Claim]] = {}  # by partition; the next one first
        self.fresh = 0  # claims that may go now and were never tried
        self._retries: deque[Claim] = deque()
        self._turn = 0
        self.behind = 0  # claims that wait for another one of their key

    def __len__(self) -> int:
        """How many may go now."""
        return self.fresh + len(self._retries)

    @property
    def retries(self) -> int:
        """How many of those were tried before."""
        return len(self._retries)

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
            self.behind += 1
            return
        if lane is not None:
            self._behind[lane] = deque()
        self._line_up(claim)

    def _line_up(self, claim: Claim) -> None:
        if claim.parked or claim.attempts:
            self._retries.append(claim)
        else:
            self._fresh.setdefault(claim.place.partition, deque()).append(claim)
            self.fresh += 1

    def take(self) -> tuple[Claim, bool]:
        """The next that may go, and whether it was never tried; its lane is closed until `free` or `again`."""
        self._turn = (self._turn + 1) % RETRY_TURN_INTERVAL
        if self.fresh and (not self._retries or self._turn != 0):
            return self._take_fresh(), True
        return self._retries.popleft(), False

    @property
    def has_fresh(self) -> bool:
        """True if a fresh message may go, or only a retry keeps one from going."""
        return self.fresh > 0 or (self.behind > 0 and any(self._is_followed(claim) for claim in self._retries))

    def _is_followed(self, claim: Claim) -> bool:
        return bool(self._behind.get(self.lane_of(claim)))

    def take_probe(self) -> tuple[Claim, bool]:
        """Like `take`: a fresh message, else a retry that keeps one from going, else the one tried longest ago."""
        if self.fresh:
            return self._take_fresh(), True
        followed = (number for number, claim in enumerate(self._retries) if self._is_followed(claim))
        number = next(followed, 0)
        claim = self._retries[number]
        del self._retries[number]
        return claim, False

    def _take_fresh(self) -> Claim:
        partition = next(iter(self._fresh))
        claims = self._fresh.pop(partition)
        claim = claims.popleft()
        if claims:
            self._fresh[partition] = claims
        self.fresh -= 1
        return claim

    def again(self, claim: Claim) -> None:
        """The same claim may go once more, after all others that were tried before; its lane stays its own."""
        self._retries.append(claim)

    def free(self, claim: Claim) -> None:
        """This claim is done with; the next of its lane may go."""
        lane = self.lane_of(claim)
        if lane is None:
            return
        behind = self._behind[lane]
        if behind:
            self._line_up(behind.popleft())
            self.behind -= 1
        else:
            del self._behind[lane]
