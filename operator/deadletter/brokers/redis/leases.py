"""What a desk holds: messages by the group's pending list, waiting letters by their holder; both for a lease.

A lease is refreshed while the desk lives. Whoever finds one run out takes the letter over.
"""

from collections.abc import Iterable
from itertools import islice

from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.scripts import REFRESH_DUE, REFRESH_PENDING, RELEASE_DUE
from deadletter.brokers.types import Claim, SubscriptionSpec

LEASE_MS = 45_000
ABANDONED_IDLE_MS = 24 * 3_600_000
MAX_IDS_PER_SCRIPT = 500
ClaimKey = tuple[bool, str]


def claim_key(claim: Claim) -> ClaimKey:
    """How a claim is known: is it parked, and its id."""
    return claim.parked, claim.place.id


class Leases:
    """The claims of one desk."""

    def __init__(self, client: RedisClient, spec: SubscriptionSpec) -> None:
        self._client, self._spec = client, spec
        self._claims: dict[ClaimKey, Claim] = {}

    def __contains__(self, key: ClaimKey) -> bool:
        return key in self._claims

    def holds(self, claim: Claim) -> bool:
        """Is it this very claim that we hold?"""
        return self._claims.get(claim_key(claim)) is claim

    def add(self, claims: Iterable[Claim]) -> None:
        """They are ours."""
        self._claims.update((claim_key(claim), claim) for claim in claims)

    def remove(self, claim: Claim) -> None:
        """It is settled, or somebody else's."""
        if self.holds(claim):
            del self._claims[claim_key(claim)]

    async def refresh(self) -> None:
        """Prolong the leases; forget what others took over."""
        spec = self._spec
        for ids in self._id_batches(parked=False):
            lost = await self._client.run_script(REFRESH_PENDING, [spec.source], [spec.group, spec.consumer, 0, *ids])
            self._remove_lost(False, lost)
        for ids in self._id_batches(parked=True):
            keys = [names.due(spec.retry), names.holders(spec.retry)]
            self._remove_lost(True, await self._client.run_script(REFRESH_DUE, keys, [spec.consumer, LEASE_MS, *ids]))

    def _id_batches(self, parked: bool) -> Iterable[list[str]]:
        ids = iter([name for of_retry, name in self._claims if of_retry is parked])
        while some := list(islice(ids, MAX_IDS_PER_SCRIPT)):
            yield some

    def _remove_lost(self, parked: bool, lost: list[bytes]) -> None:
        for name in lost:
            self._claims.pop((parked, name.decode()), None)

    async def release_letters(self) -> None:
        """Letters an earlier process of this name held are due again."""
        keys = [names.due(self._spec.retry), names.holders(self._spec.retry)]
        await self._client.run_script(RELEASE_DUE, keys, [self._spec.consumer])

    async def release_all(self) -> None:
        """Others need not wait for the lease."""
        spec = self._spec
        for ids in self._id_batches(parked=False):
            await self._client.run_script(REFRESH_PENDING, [spec.source], [spec.group, spec.consumer, ABANDONED_IDLE_MS, *ids])
        await self.release_letters()
        self._claims.clear()
