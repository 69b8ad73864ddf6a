"""Order the claims of one key: only one of them is delivered at a time, in the order they were claimed.

A claim that waits for an inline retry blocks its key; one that is parked or buried releases it. Without ordering, and
for claims without a key, nothing is blocked.

Fresh messages (never tried) go before retries: they get three of four turns, and partitions take turns. So bad messages
that are tried five times each take little capacity from good ones, and a partition full of them does not delay others.
"""

from collections import deque
from collections.abc import Hashable

from deadletter.brokers.types import Claim

RETRY_TURN_INTERVAL = 4  # every fourth turn belongs to a retry


class KeyOrderedQueue:
    """The claims that may be delivered now, and the claims blocked by an earlier one of their key."""

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._blocked_by_key: dict[Hashable, deque[Claim]] = {}
        self._fresh: dict[int, deque[Claim]] = {}  # by partition, the next one first
        self.fresh = 0  # claims that may go now and were never tried
        self._retries: deque[Claim] = deque()
        self._turn = 0
        self.blocked = 0  # claims that wait for another one of their key

    def __len__(self) -> int:
        return self.fresh + len(self._retries)

    @property
    def retries(self) -> int:
        """How many of the claims that may be delivered now were tried before."""
        return len(self._retries)

    def ordering_key(self, claim: Claim) -> Hashable:
        """Return the key that orders this claim, or None. A key is always in the same partition."""
        if not self._ordered or claim.message.key is None:
            return None
        return claim.message.key

    def add(self, claim: Claim) -> None:
        """Append a claim behind those of the same key."""
        key = self.ordering_key(claim)
        blocked = None if key is None else self._blocked_by_key.get(key)
        if blocked is not None:
            blocked.append(claim)
            self.blocked += 1
            return
        if key is not None:
            self._blocked_by_key[key] = deque()
        self._make_available(claim)

    def _make_available(self, claim: Claim) -> None:
        if claim.parked or claim.attempts:
            self._retries.append(claim)
        else:
            self._fresh.setdefault(claim.place.partition, deque()).append(claim)
            self.fresh += 1

    def take_next(self) -> tuple[Claim, bool]:
        """Remove and return the next claim, and True if it is fresh. It blocks its key until `release`."""
        self._turn = (self._turn + 1) % RETRY_TURN_INTERVAL
        if self.fresh and (not self._retries or self._turn != 0):
            return self._take_fresh(), True
        return self._retries.popleft(), False

    @property
    def has_fresh(self) -> bool:
        """True if a fresh message can be delivered now, or after a retry that blocks its key."""
        return self.fresh > 0 or (self.blocked > 0 and any(self._is_blocking(claim) for claim in self._retries))

    def _is_blocking(self, claim: Claim) -> bool:
        return bool(self._blocked_by_key.get(self.ordering_key(claim)))

    def take_probe(self) -> tuple[Claim, bool]:
        """Like `take_next` for a probe: a fresh message, else a retry that blocks its key, else the oldest retry."""
        if self.fresh:
            return self._take_fresh(), True
        blocking = (index for index, claim in enumerate(self._retries) if self._is_blocking(claim))
        index = next(blocking, 0)
        claim = self._retries[index]
        del self._retries[index]
        return claim, False

    def _take_fresh(self) -> Claim:
        partition = next(iter(self._fresh))
        claims = self._fresh.pop(partition)
        claim = claims.popleft()
        if claims:
            self._fresh[partition] = claims  # last: the other partitions come first
        self.fresh -= 1
        return claim

    def requeue(self, claim: Claim) -> None:
        """Put a taken claim behind all other retries; it goes on blocking its key."""
        self._retries.append(claim)

    def release(self, claim: Claim) -> None:
        """Release the key of a claim that is done; the next claim of that key may go."""
        key = self.ordering_key(claim)
        if key is None:
            return
        blocked = self._blocked_by_key[key]
        if blocked:
            self._make_available(blocked.popleft())
            self.blocked -= 1
        else:
            del self._blocked_by_key[key]
