"""Publish letters to streams and retry boxes in scripts of bounded size, each letter once.

A script blocks Redis while it runs, so it takes at most 500 letters or one mebibyte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.errors import TooLarge
from deadletter.brokers.redis import keys as key_names
from deadletter.brokers.redis.client import Arg, RedisClient
from deadletter.brokers.redis.entries import pack_letter, to_fields
from deadletter.brokers.redis.scripts import PUBLISH
from deadletter.core.letters import Message
from deadletter.wall_clock import now_ms

MARK_TTL_MS = 7 * 24 * 3_600_000
MAX_BATCH_ENTRIES = 500
MAX_BATCH_BYTES = 1 << 20
MAX_MARKS_PER_COMMAND = 1_000
ARG_OVERHEAD_BYTES = 16  # counted for each argument: Redis refuses a command of more than 1,048,576 arguments
MAX_VALUE_BYTES = 500 << 20  # Redis accepts 512 MiB in a field


@dataclass(slots=True)
class PendingEntry:
    """A message to publish, its target, and the mark that prevents a second publication.

    With `due_at`, the target is a retry box and the letter is parked.
    """

    target: str
    message: Message
    mark: str
    due_at: int | None = None


@dataclass(slots=True, frozen=True)
class WriteGuard:
    """Who may write: anyone (free), the newest writer (fence), the holder of a message (claim) or letter (held).

    The entries of a holder are marked with the ids of its claims, in one set for all targets.
    """

    mode: str = "free"
    key: str = ""
    token: str = ""
    consumer: str = ""
    marks: str = ""  # key of the set of marks; if empty, each target has its own set


@dataclass(slots=True)
class ScriptBatch:
    """Entries of one run of the script, and their arguments."""

    args: list[Arg] = field(default_factory=list)
    entries: list[PendingEntry] = field(default_factory=list)
    size: int = 0

    def add(self, entry: PendingEntry) -> None:
        """Append one entry."""
        fields = to_fields(entry.message) if entry.due_at is None else [pack_letter(entry.message)]
        delay = "" if entry.due_at is None else delay_ms(entry.due_at)
        self.args += (entry.mark, delay, len(fields), *fields)
        self.entries.append(entry)
        self.size += sum(map(len, fields)) + ARG_OVERHEAD_BYTES * len(fields)

    @property
    def is_full(self) -> bool:
        """True if no further entry fits."""
        return len(self.entries) >= MAX_BATCH_ENTRIES or self.size >= MAX_BATCH_BYTES


def delay_ms(due_at: int) -> int:
    """Return the milliseconds from now until a due time; Redis adds them to its clock, as ours may be wrong."""
    return max(0, due_at - now_ms())


async def publish(
    client: RedisClient, entries: Sequence[PendingEntry], guard: WriteGuard, positions_key: str | None = None
) -> dict[int, bool]:
    """Publish in order per target. A repeated call publishes nothing twice.

    Returns by index whether the guard allowed it. Published positions are appended to the list `positions_key`.
    """
    if any(len(entry.message.value or b"") > MAX_VALUE_BYTES for entry in entries):
        raise TooLarge("the message exceeds what a field of Redis accepts (512 MiB)")
    is_allowed: dict[int, bool] = {}
    for target, indexes in _indexes_by_target(entries).items():
        done = 0
        for batch in _batches([entries[index] for index in indexes]):
            for outcome in await _publish_batch(client, target, batch, guard, positions_key):
                is_allowed[indexes[done]] = outcome >= 0
                done += 1
    return is_allowed


def _indexes_by_target(entries: Sequence[PendingEntry]) -> dict[str, list[int]]:
    indexes: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        indexes.setdefault(entry.target, []).append(index)
    return indexes


def _batches(entries: Sequence[PendingEntry]) -> Iterator[ScriptBatch]:
    batch = ScriptBatch()
    for entry in entries:
        batch.add(entry)
        if batch.is_full:
            yield batch
            batch = ScriptBatch()
    if batch.entries:
        yield batch


async def _publish_batch(
    client: RedisClient, target: str, batch: ScriptBatch, guard: WriteGuard, positions_key: str | None
) -> list[int]:
    marks = guard.marks or key_names.marks(target)
    keys = [guard.key or target, target, marks, key_names.due(target), positions_key or target]
    head: list[Arg] = [guard.mode, guard.token, guard.consumer, MARK_TTL_MS, 1 if positions_key else 0]
    outcomes: list[int] = await client.run_script(PUBLISH, keys, head + batch.args)
    return outcomes


async def delete_marks(client: RedisClient, entries: Sequence[PendingEntry]) -> None:
    """Delete the marks that keep settled letters from being published twice; one that a crash leaves behind expires."""
    for target, indexes in _indexes_by_target(entries).items():
        marks = [entries[index].mark for index in indexes]
        chunks = (marks[at : at + MAX_MARKS_PER_COMMAND] for at in range(0, len(marks), MAX_MARKS_PER_COMMAND))
        await client.commands([("ZREM", key_names.marks(target), *chunk) for chunk in chunks])
