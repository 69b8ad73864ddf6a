"""Settle the letters of one dead stream as its only writer.

    publish   each letter unless its mark is there              (any number of scripts; each may be repeated)
    settle    letters, selection and progress                   (one script)
    clean up  the marks of settled letters                      (a mark that is left behind expires after 7 days)

After a crash between the first two steps, the next writer finds the letters and the marks: it publishes nothing twice
and settles. Every script checks the fence of the stream first.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.redis import keys, stream_admin
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.ledger import pack_offsets, read_progress
from deadletter.brokers.redis.publish import PendingEntry, WriteGuard, delete_marks, publish
from deadletter.brokers.redis.reads import entry_id
from deadletter.brokers.redis.scripts import LIST_IDS, SETTLE
from deadletter.brokers.types import CommitBatch
from deadletter.core.ledger.records import encode_progress, progress_key
from deadletter.core.letters import Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs

MAX_REMEMBERED = 20_000
MAX_LISTED_IDS = 1_000


class RedisPartitionWriter:
    """Implements `contract.PartitionWriter` for `stream`, which is the dead stream or its archive."""

    def __init__(self, client: RedisClient, stream: str, archive: str, ledger: str, uid: str, token: int) -> None:
        self._client, self._stream, self._archive = client, stream, archive
        self._ledger, self._uid = ledger, uid
        self._guard = WriteGuard("fence", keys.fence(stream), str(token))
        self._present_offsets: frozenset[int] | None = None
        self._present_until = 0
        self._settled: set[int] = set()
        self._settled_order: deque[int] = deque()
        self._is_failed = False
        self._mark_cleanup: asyncio.Task[None] | None = None
        self.progress: PartitionProgress | None = None

    async def open(self) -> None:
        """Read the progress, and the offsets of the stream if they are not too many to remember."""
        self.progress = await read_progress(self._client, self._ledger, self._uid)
        if await self._client.command("XLEN", self._stream) <= MAX_REMEMBERED:
            self._present_until = (await stream_admin.window(self._client, self._stream, optional=True)).end
            self._present_offsets = frozenset(await self._list_offsets())

    async def _list_offsets(self) -> list[int]:
        offsets: list[int] = []
        start = "-"
        while ids := await self._client.run_script(LIST_IDS, [self._stream], [start, MAX_LISTED_IDS]):
            offsets += (Place.from_entry_id(self._stream, id_.decode()).offset for id_ in ids)
            start = f"({ids[-1].decode()}"
        return offsets

    def is_open(self, offset: int) -> bool:
        """True unless this writer has settled the letter or the stream lacked it when this writer opened.

        Redis deletes settled letters. In a stream of more than 20,000 letters, a letter that was read earlier and
        settled before this writer opened is not recognised.
        """
        if self._present_offsets is not None and offset < self._present_until and offset not in self._present_offsets:
            return False
        return offset not in self._settled

    async def commit(self, batch: CommitBatch) -> None:
        """Publish the letters, settle them and write the progress."""
        if self._is_failed:
            raise Fenced("an earlier commit of this writer failed; open a new writer")
        self._is_failed = True
        settled = {offset for offsets in batch.settled.values() for offset in offsets}
        entries = self._pending_entries(batch, settled)
        await publish(self._client, entries, self._guard, keys.produced(self._ledger, self._uid))
        await self._settle(batch)
        self._remember_settled(settled)
        self.progress, self._is_failed = batch.progress, False
        letters = zip(entries, batch.publications, strict=True)
        marked = [entry for entry, publication in letters if publication.letter.offset in settled]
        await self.close()
        self._mark_cleanup = asyncio.create_task(self._delete_marks(marked))  # while the next batch is prepared

    async def close(self) -> None:
        """Wait until the marks of the last commit are deleted."""
        if self._mark_cleanup is not None:
            await asyncio.wait({self._mark_cleanup})

    def _pending_entries(self, batch: CommitBatch, settled: set[int]) -> list[PendingEntry]:
        return [
            PendingEntry(
                publication.to,
                publication.message,
                # A letter that stays in the stream may be published again by another Replay: its mark carries the uid.
                f"{self._stream}/{publication.letter.id}"
                + ("" if publication.letter.offset in settled else f"/{self._uid}"),
                publication.due_at,
            )
            for publication in batch.publications
        ]

    async def _settle(self, batch: CommitBatch) -> None:
        key = progress_key(self._uid, 0)
        archive = () if self._stream == self._archive else batch.settled.get(SettledAs.Archived, ())
        others = [offsets for why, offsets in batch.settled.items() if why is not SettledAs.Archived]
        delete = [offset for offsets in others for offset in offsets]
        progress, selection = encode_progress(key, batch.progress), pack_offsets(batch.selected)
        args: list[Arg] = [self._guard.token, key, progress, selection, len(archive)]
        args += [entry_id(offset) for offset in (*archive, *delete)]
        selected = keys.selected(self._ledger, self._uid)
        await self._client.run_script(
            SETTLE, [self._guard.key, self._stream, self._archive, self._ledger, selected], args
        )

    def _remember_settled(self, settled: set[int]) -> None:
        self._settled |= settled
        self._settled_order.extend(sorted(settled))
        while len(self._settled_order) > MAX_REMEMBERED:
            self._settled.discard(self._settled_order.popleft())

    async def _delete_marks(self, entries: Sequence[PendingEntry]) -> None:
        try:
            await delete_marks(self._client, entries)
        except BrokerError:
            return  # the marks expire
