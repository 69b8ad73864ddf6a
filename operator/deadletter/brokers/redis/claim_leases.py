"""Keep the leases of the claims that a subscription holds.

A message is held through the pending list of the consumer group, a parked letter through the hash of holders. The
subscription refreshes its leases; any other consumer may take over a claim whose lease has expired.
"""

from collections.abc import Iterable
from itertools import islice

from deadletter.brokers.redis import keys as key_names
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.scripts import REFRESH_DUE, REFRESH_PENDING, RELEASE_DUE
from deadletter.brokers.types import Claim, SubscriptionSpec

LEASE_MS = 45_000
ABANDONED_IDLE_MS = 24 * 3_600_000  # an idle time at which any consumer may take a message over
MAX_IDS_PER_SCRIPT = 500
ClaimKey = tuple[bool, str]  # is it a parked letter, and its id


def claim_key(claim: Claim) -> ClaimKey:
    """Return the key of a claim in memory: whether it was parked, and its entry id."""
    return claim.parked, claim.place.id


class Leases:
    """The claims that one subscription holds."""

    def __init__(self, client: RedisClient, spec: SubscriptionSpec) -> None:
        self._client, self._spec = client, spec
        self._claims: dict[ClaimKey, Claim] = {}

    def __contains__(self, key: ClaimKey) -> bool:
        return key in self._claims

    def holds(self, claim: Claim) -> bool:
        """True if this very claim is held, and not another claim of the same message."""
        return self._claims.get(claim_key(claim)) is claim

    def add(self, claims: Iterable[Claim]) -> None:
        """Store new claims."""
        self._claims.update((claim_key(claim), claim) for claim in claims)

    def remove(self, claim: Claim) -> None:
        """Remove a claim that is settled or was taken over."""
        if self.holds(claim):
            del self._claims[claim_key(claim)]

    async def refresh(self) -> None:
        """Extend all leases and remove the claims that other consumers have taken over."""
        spec = self._spec
        for ids in self._id_batches(parked=False):
            args: list[Arg] = [spec.group, spec.consumer, 0, *ids]
            self._remove_lost(False, await self._client.run_script(REFRESH_PENDING, [spec.source], args))
        for ids in self._id_batches(parked=True):
            args = [spec.consumer, LEASE_MS, *ids]
            self._remove_lost(True, await self._client.run_script(REFRESH_DUE, self._retry_keys(), args))

    def _retry_keys(self) -> list[str]:
        return [key_names.due(self._spec.retry), key_names.holders(self._spec.retry)]

    def _id_batches(self, parked: bool) -> Iterable[list[str]]:
        ids = iter([entry_id for is_parked, entry_id in self._claims if is_parked is parked])
        while batch := list(islice(ids, MAX_IDS_PER_SCRIPT)):
            yield batch

    def _remove_lost(self, parked: bool, lost: list[bytes]) -> None:
        for entry_id in lost:
            self._claims.pop((parked, entry_id.decode()), None)

    async def release_letters(self) -> None:
        """Make every parked letter due again that this consumer, or an earlier process of its name, holds."""
        await self._client.run_script(RELEASE_DUE, self._retry_keys(), [self._spec.consumer])

    async def release_all(self) -> None:
        """Release all claims, so that other consumers need not wait until the leases expire."""
        spec = self._spec
        for ids in self._id_batches(parked=False):
            args: list[Arg] = [spec.group, spec.consumer, ABANDONED_IDLE_MS, *ids]
            await self._client.run_script(REFRESH_PENDING, [spec.source], args)
        await self.release_letters()
        self._claims.clear()
