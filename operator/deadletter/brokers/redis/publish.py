"""Publishing: letters go to their boxes in scripts of bounded size, each letter once.

A script blocks Redis while it runs, so one takes at most 500 letters or a mebibyte.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deadletter.brokers.errors import TooLarge
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis.client import Line, Word
from deadletter.brokers.redis.entries import fields_of, pack_letter
from deadletter.brokers.redis.scripts import PUT
from deadletter.clock import now_ms
from deadletter.core.letters import Message

MARK_LIFE = 7 * 24 * 3_600_000
_MOST_LETTERS = 500
_MOST_BYTES = 1 << 20
_WORD_BYTES = 16  # what a word costs beside its bytes; Redis refuses a command of more than 1,048,576 words
_LARGEST = 500 << 20  # Redis takes 512 MiB in a field


@dataclass(slots=True)
class Parcel:
    """A message on its way: where to, and the mark that makes it arrive once."""

    to: str
    message: Message
    mark: str
    due_at: int | None = None


@dataclass(slots=True, frozen=True)
class Guard:
    """Who may write: anyone (free), the newest mover (fence), the holder of a message (claim) or letter (held).

    A holder's parcels are marked by the ids of its claims, in one set whatever box they go to.
    """

    mode: str = "free"
    key: str = ""
    token: str = ""
    consumer: str = ""
    marks: str = ""  # none: marks stand beside the target


@dataclass(slots=True)
class _Batch:
    words: list[Word] = field(default_factory=list)
    parcels: list[Parcel] = field(default_factory=list)
    size: int = 0

    def add(self, parcel: Parcel) -> None:
        fields = fields_of(parcel.message) if parcel.due_at is None else [pack_letter(parcel.message)]
        wait = "" if parcel.due_at is None else wait_until(parcel.due_at)
        self.words += (parcel.mark, wait, len(fields), *fields)
        self.parcels.append(parcel)
        self.size += sum(map(len, fields)) + _WORD_BYTES * len(fields)

    @property
    def is_full(self) -> bool:
        return len(self.parcels) >= _MOST_LETTERS or self.size >= _MOST_BYTES


def wait_until(due_at: int) -> int:
    """Milliseconds from now. Redis adds them to its own clock, by which it judges what is due: ours may be off."""
    return max(0, due_at - now_ms())


async def publish(line: Line, parcels: Sequence[Parcel], guard: Guard, produced: str | None = None) -> dict[int, bool]:
    """Publish in order per box. Answers by position: was it ours to publish? Repeating it publishes nothing twice."""
    if any(len(parcel.message.value or b"") > _LARGEST for parcel in parcels):
        raise TooLarge("the message exceeds what a field of Redis takes (512 MiB)")
    ours: dict[int, bool] = {}
    for box, positions in _by_box(parcels).items():
        done = 0
        for batch in _batches([parcels[position] for position in positions]):
            for outcome in await _put(line, box, batch, guard, produced):
                ours[positions[done]] = outcome >= 0
                done += 1
    return ours


def _by_box(parcels: Sequence[Parcel]) -> dict[str, list[int]]:
    boxes: dict[str, list[int]] = {}
    for position, parcel in enumerate(parcels):
        boxes.setdefault(parcel.to, []).append(position)
    return boxes


def _batches(parcels: Sequence[Parcel]) -> Iterator[_Batch]:
    batch = _Batch()
    for parcel in parcels:
        batch.add(parcel)
        if batch.is_full:
            yield batch
            batch = _Batch()
    if batch.parcels:
        yield batch


async def _put(line: Line, box: str, batch: _Batch, guard: Guard, produced: str | None) -> list[int]:
    keys = [guard.key or box, box, guard.marks or names.marks(box), names.due(box), produced or box]
    head: list[Word] = [guard.mode, guard.token, guard.consumer, MARK_LIFE, 1 if produced else 0]
    outcomes: list[int] = await line.run(PUT, keys, head + batch.words)
    return outcomes


async def unmark(line: Line, parcels: Sequence[Parcel]) -> None:
    """The letters are settled and cannot be published again; a mark that stays by a crash ends by itself."""
    for box, positions in _by_box(parcels).items():
        marks = [parcels[position].mark for position in positions]
        await line.calls([("ZREM", names.marks(box), *marks[at : at + 1000]) for at in range(0, len(marks), 1000)])
