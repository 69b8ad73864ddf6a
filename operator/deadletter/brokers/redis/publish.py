"""Publishing: letters go to their boxes in scripts of bounded size, each letter once.

A script blocks Redis while it runs, so one takes at most 500 letters or a mebibyte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.errors import TooLarge
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.entries import pack_letter, to_fields
from deadletter.brokers.redis.scripts import PUBLISH
from deadletter.clock import now_ms
from deadletter.core.letters import Message

MARK_TTL_MS = 7 * 24 * 3_600_000
MAX_BATCH_ENTRIES = 500
MAX_BATCH_BYTES = 1 << 20
ARG_OVERHEAD_BYTES = 16  # what a word costs beside its bytes; Redis refuses a command of more than 1,048,576 words
MAX_VALUE_BYTES = 500 << 20  # Redis takes 512 MiB in a field


@dataclass(slots=True)
class PendingEntry:
    """A message on its way: where to, and the mark that makes it arrive once."""

    stream: str
    message: Message
    mark: str
    due_at: int | None = None


@dataclass(slots=True, frozen=True)
class WriteGuard:
    """Who may write: anyone (free), the newest mover (fence), the holder of a message (claim) or letter (held).

    A holder's parcels are marked by the ids of its claims, in one set whatever box they go to.
    """

    mode: str = "free"
    key: str = ""
    token: str = ""
    consumer: str = ""
    marks: str = ""  # none: marks stand beside the target


@dataclass(slots=True)
class ScriptBatch:
    args: list[Arg] = field(default_factory=list)
    entries: list[PendingEntry] = field(default_factory=list)
    size: int = 0

    def add(self, entry: PendingEntry) -> None:
        fields = to_fields(entry.message) if entry.due_at is None else [pack_letter(entry.message)]
        wait = "" if entry.due_at is None else delay_ms(entry.due_at)
        self.args += (entry.mark, wait, len(fields), *fields)
        self.entries.append(entry)
        self.size += sum(map(len, fields)) + ARG_OVERHEAD_BYTES * len(fields)

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= MAX_BATCH_ENTRIES or self.size >= MAX_BATCH_BYTES


def delay_ms(due_at: int) -> int:
    """Milliseconds from now. Redis adds them to its own clock, by which it judges what is due: ours may be off."""
    return max(0, due_at - now_ms())


async def publish(client: RedisClient, entries: Sequence[PendingEntry], guard: WriteGuard, published_list: str | None = None) -> dict[int, bool]:
    """Publish in order per box. Answers by position: was it ours to publish? Repeating it publishes nothing twice."""
    if any(len(parcel.message.value or b"") > MAX_VALUE_BYTES for parcel in entries):
        raise TooLarge("the message exceeds what a field of Redis takes (512 MiB)")
    ours: dict[int, bool] = {}
    for box, positions in _positions_by_stream(entries).items():
        done = 0
        for batch in _batches([entries[position] for position in positions]):
            for outcome in await _publish_batch(client, box, batch, guard, published_list):
                ours[positions[done]] = outcome >= 0
                done += 1
    return ours


def _positions_by_stream(entries: Sequence[PendingEntry]) -> dict[str, list[int]]:
    boxes: dict[str, list[int]] = {}
    for position, parcel in enumerate(entries):
        boxes.setdefault(parcel.stream, []).append(position)
    return boxes


def _batches(entries: Sequence[PendingEntry]) -> Iterator[ScriptBatch]:
    batch = ScriptBatch()
    for parcel in entries:
        batch.add(parcel)
        if batch.is_full:
            yield batch
            batch = ScriptBatch()
    if batch.entries:
        yield batch


async def _publish_batch(client: RedisClient, box: str, batch: ScriptBatch, guard: WriteGuard, produced: str | None) -> list[int]:
    keys = [guard.key or box, box, guard.marks or names.marks(box), names.due(box), produced or box]
    head: list[Arg] = [guard.mode, guard.token, guard.consumer, MARK_TTL_MS, 1 if produced else 0]
    outcomes: list[int] = await client.run_script(PUBLISH, keys, head + batch.args)
    return outcomes


async def delete_marks(client: RedisClient, entries: Sequence[PendingEntry]) -> None:
    """The letters are settled and cannot be published again; a mark that stays by a crash ends by itself."""
    for box, positions in _positions_by_stream(entries).items():
        marks = [entries[position].mark for position in positions]
        await client.commands([("ZREM", names.marks(box), *marks[at : at + 1000]) for at in range(0, len(marks), 1000)])
