"""What a desk holds: messages by the group's pending list, waiting letters by their holder; both for a lease.

A lease is refreshed while the desk lives. Whoever finds one run out takes the letter over.
"""

from collections.abc import Iterable
from itertools import islice

from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Line
from deadletter.brokers.redis.scripts import FREE_DUE, KEEP_DUE, REFRESH
from deadletter.brokers.types import Claim, SubscriptionSpec

LEASE = 45_000
_ABANDONED = 24 * 3_600_000
_SLICE = 500
Held = tuple[bool, str]


def held_key(claim: Claim) -> Held:
    """How a claim is known: is it parked, and its id."""
    return claim.parked, claim.place.id


class Hands:
    """The claims of one desk."""

    def __init__(self, line: Line, spec: SubscriptionSpec) -> None:
        self._line, self._spec = line, spec
        self._claims: dict[Held, Claim] = {}

    def __contains__(self, key: Held) -> bool:
        return key in self._claims

    def holds(self, claim: Claim) -> bool:
        """Is it this very claim that we hold?"""
        return self._claims.get(held_key(claim)) is claim

    def take(self, claims: Iterable[Claim]) -> None:
        """They are ours."""
        self._claims.update((held_key(claim), claim) for claim in claims)

    def let_go(self, claim: Claim) -> None:
        """It is settled, or somebody else's."""
        if self.holds(claim):
            del self._claims[held_key(claim)]

    async def refresh(self) -> None:
        """Prolong the leases; forget what others took over."""
        spec = self._spec
        for ids in self._slices(parked=False):
            lost = await self._line.run(REFRESH, [spec.source], [spec.group, spec.consumer, 0, *ids])
            self._forget(False, lost)
        for ids in self._slices(parked=True):
            keys = [names.due(spec.retry), names.holders(spec.retry)]
            self._forget(True, await self._line.run(KEEP_DUE, keys, [spec.consumer, LEASE, *ids]))

    def _slices(self, parked: bool) -> Iterable[list[str]]:
        ids = iter([name for of_retry, name in self._claims if of_retry is parked])
        while some := list(islice(ids, _SLICE)):
            yield some

    def _forget(self, parked: bool, lost: list[bytes]) -> None:
        for name in lost:
            self._claims.pop((parked, name.decode()), None)

    async def free_due(self) -> None:
        """Letters an earlier process of this name held are due again."""
        keys = [names.due(self._spec.retry), names.holders(self._spec.retry)]
        await self._line.run(FREE_DUE, keys, [self._spec.consumer])

    async def give_back(self) -> None:
        """Others need not wait for the lease."""
        spec = self._spec
        for ids in self._slices(parked=False):
            await self._line.run(REFRESH, [spec.source], [spec.group, spec.consumer, _ABANDONED, *ids])
        await self.free_due()
        self._claims.clear()
