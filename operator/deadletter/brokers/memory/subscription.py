"""Subscribe to boxes in memory. There is no rebalance: any consumer may claim a message that is not held."""

import asyncio
from itertools import islice, zip_longest

from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.lost_offsets import EARLIEST, LATEST, offsets_lost_error
from deadletter.brokers.memory.group_offsets import is_lost, start_offsets
from deadletter.brokers.memory.server import MemoryBox, MemoryServer
from deadletter.brokers.retry_headers import add_attempts, to_claim
from deadletter.brokers.types import Buried, Claim, Parked, Publication, Settlement, SubscriptionSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.letters import Place

CLAIM_TIMEOUT_S = 1.0
POLL_INTERVAL_S = 0.01


class MemorySubscription:
    """Implements `contract.Subscription`. A second subscription of one consumer takes over the claims of the first."""

    blocked_by: BrokerError | None = None
    lost_letters = 0  # no other client deletes letters here
    deleted_messages = 0

    def __init__(self, server: MemoryServer, spec: SubscriptionSpec) -> None:
        self._server, self._spec = server, spec
        if spec.has_started and is_lost(server, spec.source, spec.group):
            raise offsets_lost_error(spec.source, spec.group)
        self._group = server.groups[spec.source, spec.group]
        # A partition without a position was added if the group is not new; then its messages must not be skipped.
        is_new = not self._group.next_offsets and not spec.has_started
        start = EARLIEST if spec.from_earliest or not is_new else LATEST
        for partition, first in enumerate(start_offsets(server.get_box(spec.source), start)):
            self._group.next_offsets.setdefault(partition, first)
        self._group.release(spec.consumer)
        self._session = self._group.sessions.get(spec.consumer, 0) + 1
        self._group.sessions[spec.consumer] = self._session

    @property
    def lag(self) -> int:
        """Number of messages of the source that are not claimed yet."""
        source = self._server.boxes.get(self._spec.source)
        if source is None:
            return 0
        next_offsets = self._group.next_offsets
        unread = (end - next_offsets.get(partition, 0) for partition, end in enumerate(source.end_offsets))
        return sum(unread) + len(self._group.released)

    @property
    def parked_letters(self) -> int:
        """Number of letters in the retry box."""
        retry = self._retry_box()
        return len(retry.waiting) if retry else 0

    def _retry_box(self) -> MemoryBox | None:
        return self._server.boxes.get(self._spec.retry)

    async def claim(self, limit: int, max_bytes: int = 64 << 20, due_limit: int | None = None) -> list[Claim]:
        """Claim due letters, then messages of the source; wait at most 1 s for the first claim."""
        due_limit = limit if due_limit is None else min(due_limit, limit)
        deadline = asyncio.get_running_loop().time() + CLAIM_TIMEOUT_S
        while True:
            self._raise_if_fenced()
            claims = self._claim_now(limit, max_bytes, due_limit)
            if claims or asyncio.get_running_loop().time() >= deadline:
                return claims
            await asyncio.sleep(POLL_INTERVAL_S)

    def _raise_if_fenced(self) -> None:
        self._server.raise_if_down()
        if self._group.sessions.get(self._spec.consumer) != self._session:
            raise Fenced(f"another courier has taken over as {self._spec.consumer}")

    def _claim_now(self, limit: int, max_bytes: int, due_limit: int) -> list[Claim]:
        taken: list[Claim] = []
        for claim in (*self._due_claims(due_limit), *self._source_claims(limit)):
            max_bytes -= claim.message.size
            if len(taken) >= limit or (taken and max_bytes < 0):
                break
            taken.append(claim)
        for claim in taken:
            self._hold(claim)
        return taken

    def _due_claims(self, limit: int) -> list[Claim]:
        retry, now = self._retry_box(), self._server.clock()
        if retry is None:
            return []
        ready = sorted((letter.due_at, offset) for offset, letter in retry.waiting.items() if letter.due_at <= now)
        free = [offset for _, offset in ready if (True, 0, offset) not in self._group.holders]
        return [self._parked_claim(offset, retry) for offset in free[:limit]]

    def _parked_claim(self, offset: int, retry: MemoryBox) -> Claim:
        return to_claim(Place(self._spec.retry, 0, offset), retry.waiting[offset].message)

    def _source_claims(self, limit: int) -> list[Claim]:
        source = self._server.get_box(self._spec.source)
        unread: list[list[tuple[int, int]]] = []
        for partition, letters in enumerate(source.partitions):
            offsets = range(self._group.next_offsets.setdefault(partition, 0), source.end_offsets[partition])
            unread.append([(partition, offset) for offset in offsets if offset in letters])
        in_turn = (place for places in zip_longest(*unread) for place in places if place is not None)
        present = (place for place in (*self._group.released, *in_turn) if place[1] in source.partitions[place[0]])
        return [self._source_claim(source, *place) for place in islice(present, limit)]

    def _source_claim(self, source: MemoryBox, partition: int, offset: int) -> Claim:
        attempts, first = self._group.attempts.get((partition, offset), (0, None))
        message = source.partitions[partition][offset]
        return Claim(Place(self._spec.source, partition, offset), message, attempts, first)

    def _hold(self, claim: Claim) -> None:
        partition, offset = claim.place.partition, claim.place.offset
        self._group.holders[_claim_key(claim)] = self._spec.consumer
        if claim.parked:
            return
        if (partition, offset) in self._group.released:
            self._group.released.remove((partition, offset))
        self._group.next_offsets[partition] = max(self._group.next_offsets[partition], offset + 1)

    def record_attempt(self, claim: Claim, attempts: int, first_failed_at: int) -> None:
        """Record a failed inline attempt; a letter that is parked again carries its attempts in its headers."""
        claim.attempts, claim.first_failed_at = attempts, first_failed_at
        if not claim.parked and self.holds(claim):
            self._group.attempts[claim.place.partition, claim.place.offset] = (attempts, first_failed_at)

    def holds(self, claim: Claim) -> bool:
        """True if this subscription still holds the claim."""
        is_current = self._group.sessions.get(self._spec.consumer) == self._session
        return is_current and self._group.holders.get(_claim_key(claim)) == self._spec.consumer

    async def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Settle a claim, completely or not at all."""
        self._server.raise_if_down()
        if not self.holds(claim):
            raise Fenced(f"{claim.place.id} of {claim.place.box} is no longer ours")
        if isinstance(settlement, Buried):
            box = self._server.get_box(settlement.box)
            partition = claim.place.partition % len(box.partitions)
            self._server.publish(Publication(settlement.box, settlement.message, claim.place, partition))
        elif isinstance(settlement, Parked):
            message = add_attempts(settlement.message, claim)
            self._server.publish(Publication(self._spec.retry, message, claim.place, due_at=settlement.due_at))
        self._remove_claim(claim)

    def _remove_claim(self, claim: Claim) -> None:
        del self._group.holders[_claim_key(claim)]
        if not claim.parked:
            self._group.attempts.pop((claim.place.partition, claim.place.offset), None)
        elif retry := self._retry_box():
            retry.waiting.pop(claim.place.offset, None)

    async def report_status(self, status: WorkerStatus) -> None:
        """Store the status in the ledger."""
        self._server.raise_if_down()
        self._server.ledgers[self._spec.ledger].worker_statuses[status.pod] = status

    def close(self) -> None:
        """Release the claims that are still held and delete the status of this consumer."""
        if self._group.sessions.get(self._spec.consumer) == self._session:
            self._group.release(self._spec.consumer)
            self._server.ledgers[self._spec.ledger].worker_statuses.pop(self._spec.consumer, None)


def _claim_key(claim: Claim) -> tuple[bool, int, int]:
    return claim.parked, claim.place.partition, claim.place.offset
