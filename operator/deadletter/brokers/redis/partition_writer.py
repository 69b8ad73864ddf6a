"""The settler of a box on Redis.

    publish   each letter unless its mark stands beside the target        (any number of scripts, each harmless again)
    settle    letters out of the box, selection and tally into the ledger (one script)
    unmark    what is settled needs no mark                               (a mark that stays ends after 7 days)

Killed between the first two, the next mover finds the letters still there and the marks too: it publishes nothing
twice and settles. Each script asks the fence of the box first.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.redis import keys, streams
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.ledger import read_progress
from deadletter.brokers.redis.packed_selection import pack_offsets
from deadletter.brokers.redis.publish import PendingEntry, WriteGuard, delete_marks, publish
from deadletter.brokers.redis.scripts import LIST_IDS, SETTLE
from deadletter.brokers.types import CommitBatch
from deadletter.core.ledger.records import encode_progress, progress_key
from deadletter.core.letters import Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs

MAX_REMEMBERED = 20_000
MAX_LISTED_IDS = 1_000


class RedisPartitionWriter:
    """Keeps the contract of `base.Mover`. `stream` is what it settles: the dead box or its archive."""

    def __init__(self, client: RedisClient, stream: str, archive: str, ledger: str, uid: str, token: int) -> None:
        self._client, self._stream, self._archive = client, stream, archive
        self._ledger, self._uid = ledger, uid
        self._guard = WriteGuard("fence", keys.fence(stream), str(token))
        self._present_offsets: frozenset[int] | None = None
        self._present_until = 0
        self._settled: set[int] = set()
        self._settled_order: deque[int] = deque()
        self._is_closed = False
        self._mark_cleanup: asyncio.Task[None] | None = None
        self.progress: PartitionProgress | None = None

    async def open(self) -> None:
        """Read the tally, and which letters are there when they are not too many to remember."""
        self.progress = await read_progress(self._client, self._ledger, self._uid)
        if await self._client.command("XLEN", self._stream) <= MAX_REMEMBERED:
            self._present_until = (await streams.window(self._client, self._stream, optional=True)).end
            self._present_offsets = frozenset(await self._list_offsets())

    async def _list_offsets(self) -> list[int]:
        offsets: list[int] = []
        start = "-"
        while found := await self._client.run_script(LIST_IDS, [self._stream], [start, MAX_LISTED_IDS]):
            offsets += (Place.from_entry_id(self._stream, name.decode()).offset for name in found)
            start = f"({found[-1].decode()}"
        return offsets

    def is_open(self, offset: int) -> bool:
        """Settled letters are gone from the stream, so a letter that was read is open unless it was settled since.

        In a box of more than 20,000 letters, one that was settled before this mover began is not told apart.
        """
        if self._present_offsets is not None and offset < self._present_until and offset not in self._present_offsets:
            return False
        return offset not in self._settled

    async def commit(self, batch: CommitBatch) -> None:
        """Publish, settle, count."""
        if self._is_closed:
            raise Fenced("this mover is spent; open a new one")
        self._is_closed = True
        gone = {offset for offsets in batch.settled.values() for offset in offsets}
        parcels = self._pending_entries(batch, gone)
        await publish(self._client, parcels, self._guard, keys.produced(self._ledger, self._uid))
        await self._settle(batch)
        self._remember_settled(gone)
        self.progress, self._is_closed = batch.progress, False
        settled = [parcel for parcel, one in zip(parcels, batch.publications, strict=True) if one.letter.offset in gone]
        await self.close()
        self._mark_cleanup = asyncio.create_task(self._delete_marks(settled))  # while the next step is made

    async def close(self) -> None:
        """Wait until no mark is being taken away."""
        if self._mark_cleanup is not None:
            await asyncio.wait({self._mark_cleanup})

    def _pending_entries(self, step: CommitBatch, gone: set[int]) -> list[PendingEntry]:
        """A letter that stays in the box may be sent again by another Replay: its mark carries ours."""
        return [
            PendingEntry(
                one.to,
                one.message,
                f"{self._stream}/{one.letter.id}" + ("" if one.letter.offset in gone else f"/{self._uid}"),
                one.due_at,
            )
            for one in step.publications
        ]

    async def _settle(self, step: CommitBatch) -> None:
        key = progress_key(self._uid, 0)
        keep = () if self._stream == self._archive else step.settled.get(SettledAs.Archived, ())
        drop = [offset for why, offsets in step.settled.items() if why is not SettledAs.Archived for offset in offsets]
        words: list[Arg] = [
            self._guard.token,
            key,
            encode_progress(key, step.progress),
            pack_offsets(step.selected),
            len(keep),
        ]
        words += [_entry_id(offset) for offset in (*keep, *drop)]
        fence, chosen = self._guard.key, keys.selected(self._ledger, self._uid)
        await self._client.run_script(SETTLE, [fence, self._stream, self._archive, self._ledger, chosen], words)

    def _remember_settled(self, gone: set[int]) -> None:
        self._settled |= gone
        self._settled_order.extend(sorted(gone))
        while len(self._settled_order) > MAX_REMEMBERED:
            self._settled.discard(self._settled_order.popleft())

    async def _delete_marks(self, parcels: Sequence[PendingEntry]) -> None:
        try:
            await delete_marks(self._client, parcels)
        except BrokerError:
            return  # they end by themselves


def _entry_id(offset: int) -> str:
    return Place("", 0, offset).id
