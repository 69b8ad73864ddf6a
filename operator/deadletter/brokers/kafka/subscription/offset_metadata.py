"""Commit metadata: which messages below the highest one taken are unfinished, and how often they failed.

Kafka keeps one offset a partition; this text beside it makes it a set, so that a restart redelivers nothing finished.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import sub

from deadletter.brokers.errors import LedgerCorrupt

PREFIX = "dlq1:"
MAX_METADATA_BYTES = 4_096  # bytes; the broker refuses more


@dataclass(slots=True, frozen=True)
class Attempts:
    """Deliveries tried so far, and when the first one failed."""

    count: int = 0
    first_failed_at: int | None = None


NO_ATTEMPTS = Attempts()


def encode(offset: int, highest: int, unfinished: Mapping[int, Attempts]) -> str:
    """The text to commit beside `offset`, which is the lowest unfinished one or the next to take.

    Where hundreds failed, the youngest of them keep their count alone: a time of first failure may be forgotten by a
    crash, a commit that the broker refuses would hold up all the others.
    """
    text = _render(offset, highest, unfinished)
    return text if len(text) <= MAX_METADATA_BYTES else _render(offset, highest, _shorter(unfinished, len(text) - MAX_METADATA_BYTES))


def max_encoded_bytes(count: int, failed: int, span: int) -> int:
    """No text for so many offsets within `span`, so many of them failed, has more bytes; told without rendering it."""
    content = 9 + 2 * count + (span >> 7) + 10 * failed  # a distance takes a byte, and one more for every 128 at most
    return len(PREFIX) + content * 4 // 3 + 4


def _shorter(unfinished: Mapping[int, Attempts], excess: int) -> dict[int, Attempts]:
    timed = [(state.first_failed_at, offset) for offset, state in unfinished.items() if state.first_failed_at]
    youngest = sorted(timed, reverse=True)[: excess // 6 + 2]  # each time is five bytes less, in base64 almost seven
    return {**unfinished, **{offset: Attempts(unfinished[offset].count) for _, offset in youngest}}


def _render(offset: int, highest: int, unfinished: Mapping[int, Attempts]) -> str:
    content = bytearray()
    _put(content, highest - offset + 1)
    offsets = sorted(unfinished)
    deltas = list(map(sub, offsets, [offset, *offsets]))
    if deltas and max(deltas) <= 0x7F and list(unfinished.values()).count(NO_ATTEMPTS) == len(offsets):
        plain = bytearray(2 * len(offsets))  # the usual case, done for hundreds of offsets many times a second
        plain[::2] = bytes(deltas)
        content += plain
    else:
        for one, delta in zip(offsets, deltas, strict=True):
            _put_one(content, delta, unfinished[one])
    return PREFIX + b64encode(content).decode()


def _put_one(content: bytearray, delta: int, state: Attempts) -> None:
    _put(content, delta)
    _put(content, state.count)
    if state.count:
        _put(content, state.first_failed_at or 0)


def decode(offset: int, text: str) -> tuple[int, dict[int, Attempts]]:
    """Highest taken offset and the unfinished ones; another consumer's metadata says nothing was taken above."""
    if not text.startswith(PREFIX):
        return offset - 1, {}
    try:
        numbers = _numbers(b64decode(text[len(PREFIX) :], validate=True))
        highest = offset + next(numbers) - 1
        return highest, dict(_unfinished(offset, numbers))
    except (ValueError, StopIteration, RuntimeError) as error:
        raise LedgerCorrupt("the commit metadata of the group cannot be read") from error


def _unfinished(offset: int, numbers: Iterator[int]) -> Iterator[tuple[int, Attempts]]:
    for delta in numbers:
        offset += delta
        attempts = next(numbers)
        first = next(numbers) if attempts else 0
        yield offset, Attempts(attempts, first or None)


def _put(content: bytearray, number: int) -> None:
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)


def _numbers(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("cut")
