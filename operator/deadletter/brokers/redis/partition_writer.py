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
from deadletter.brokers.redis.client import Line, Word
from deadletter.brokers.redis.ledger import read_tally
from deadletter.brokers.redis.packed_selection import packed
from deadletter.brokers.redis.publish import Guard, Parcel, publish, unmark
from deadletter.brokers.redis.scripts import LIST_IDS, SETTLE
from deadletter.brokers.types import CommitBatch
from deadletter.core.ledger.records import encode_progress, progress_key
from deadletter.core.letters import Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs

_REMEMBERED = 20_000
_SLICE = 1_000


class RedisPartitionWriter:
    """Keeps the contract of `base.Mover`. `stream` is what it settles: the dead box or its archive."""

    def __init__(self, line: Line, stream: str, archive: str, ledger: str, uid: str, token: int) -> None:
        self._line, self._stream, self._archive = line, stream, archive
        self._ledger, self._uid = ledger, uid
        self._guard = Guard("fence", keys.fence(stream), str(token))
        self._present: frozenset[int] | None = None
        self._seen_to = 0
        self._settled: set[int] = set()
        self._order: deque[int] = deque()
        self._spent = False
        self._unmarking: asyncio.Task[None] | None = None
        self.progress: PartitionProgress | None = None

    async def begin(self) -> None:
        """Read the tally, and which letters are there when they are not too many to remember."""
        self.progress = await read_tally(self._line, self._ledger, self._uid)
        if await self._line.call("XLEN", self._stream) <= _REMEMBERED:
            self._seen_to = (await streams.window(self._line, self._stream, optional=True)).end
            self._present = frozenset(await self._list())

    async def _list(self) -> list[int]:
        offsets: list[int] = []
        start = "-"
        while found := await self._line.run(LIST_IDS, [self._stream], [start, _SLICE]):
            offsets += (Place.from_entry_id(self._stream, name.decode()).offset for name in found)
            start = f"({found[-1].decode()}"
        return offsets

    def is_open(self, offset: int) -> bool:
        """Settled letters are gone from the stream, so a letter that was read is open unless it was settled since.

        In a box of more than 20,000 letters, one that was settled before this mover began is not told apart.
        """
        if self._present is not None and offset < self._seen_to and offset not in self._present:
            return False
        return offset not in self._settled

    async def commit(self, batch: CommitBatch) -> None:
        """Publish, settle, count."""
        if self._spent:
            raise Fenced("this mover is spent; open a new one")
        self._spent = True
        gone = {offset for offsets in batch.settled.values() for offset in offsets}
        parcels = self._parcels(batch, gone)
        await publish(self._line, parcels, self._guard, keys.produced(self._ledger, self._uid))
        await self._settle(batch)
        self._remember(gone)
        self.progress, self._spent = batch.progress, False
        settled = [parcel for parcel, one in zip(parcels, batch.publications, strict=True) if one.letter.offset in gone]
        await self.finish()
        self._unmarking = asyncio.create_task(self._unmark(settled))  # while the next step is made

    async def finish(self) -> None:
        """Wait until no mark is being taken away."""
        if self._unmarking is not None:
            await asyncio.wait({self._unmarking})

    def _parcels(self, step: CommitBatch, gone: set[int]) -> list[Parcel]:
        """A letter that stays in the box may be sent again by another Replay: its mark carries ours."""
        return [
            Parcel(
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
        words: list[Word] = [
            self._guard.token,
            key,
            encode_progress(key, step.progress),
            packed(step.selected),
            len(keep),
        ]
        words += [_entry(offset) for offset in (*keep, *drop)]
        fence, chosen = self._guard.key, keys.selected(self._ledger, self._uid)
        await self._line.run(SETTLE, [fence, self._stream, self._archive, self._ledger, chosen], words)

    def _remember(self, gone: set[int]) -> None:
        self._settled |= gone
        self._order.extend(sorted(gone))
        while len(self._order) > _REMEMBERED:
            self._settled.discard(self._order.popleft())

    async def _unmark(self, parcels: Sequence[Parcel]) -> None:
        try:
            await unmark(self._line, parcels)
        except BrokerError:
            return  # they end by themselves


def _entry(offset: int) -> str:
    return Place("", 0, offset).id
