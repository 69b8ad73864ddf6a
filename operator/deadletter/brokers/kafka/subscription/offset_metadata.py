"""Encode which messages below the highest one taken are unfinished, and how often they failed, as commit metadata.

Kafka keeps one offset for each partition. With this metadata of the commit it becomes a set, so that a restart does not
redeliver finished messages.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import sub

from deadletter.brokers.errors import LedgerCorrupt

PREFIX = "dlq1:"
MAX_METADATA_BYTES = 4_096  # default of offset.metadata.max.bytes; the broker refuses more


@dataclass(slots=True, frozen=True)
class Attempts:
    """The number of deliveries tried so far, and when the first one failed."""

    count: int = 0
    first_failed_at: int | None = None


NO_ATTEMPTS = Attempts()


def encode(offset: int, highest: int, unfinished: Mapping[int, Attempts]) -> str:
    """Return the metadata to commit with `offset`, which is the lowest unfinished one or the next to take.

    If it is too long because hundreds failed, the youngest failures keep their count but lose their time: a time may
    get lost in a crash anyway, but a commit that the broker refuses would hold up all the others.
    """
    text = _encode_all(offset, highest, unfinished)
    if len(text) <= MAX_METADATA_BYTES:
        return text
    return _encode_all(offset, highest, _drop_times(unfinished, len(text) - MAX_METADATA_BYTES))


def max_encoded_bytes(count: int, failed: int, span: int) -> int:
    """Return an upper bound of the length of metadata for `count` offsets within `span`, `failed` of them with times.

    It is computed without encoding, because it is needed for every read.
    """
    content = 9 + 2 * count + (span >> 7) + 10 * failed  # a distance takes a byte, and one more for every 128 at most
    return len(PREFIX) + content * 4 // 3 + 4


def _drop_times(unfinished: Mapping[int, Attempts], excess: int) -> dict[int, Attempts]:
    timed = [(attempts.first_failed_at, offset) for offset, attempts in unfinished.items() if attempts.first_failed_at]
    youngest = sorted(timed, reverse=True)[: excess // 6 + 2]  # a time takes five bytes, in base64 almost seven
    return {**unfinished, **{offset: Attempts(unfinished[offset].count) for _, offset in youngest}}


def _encode_all(offset: int, highest: int, unfinished: Mapping[int, Attempts]) -> str:
    content = bytearray()
    _append_varint(content, highest - offset + 1)
    offsets = sorted(unfinished)
    deltas = list(map(sub, offsets, [offset, *offsets]))
    if deltas and max(deltas) <= 0x7F and list(unfinished.values()).count(NO_ATTEMPTS) == len(offsets):
        # The usual case, encoded for hundreds of offsets many times a second: one byte each for distance and count.
        pairs = bytearray(2 * len(offsets))
        pairs[::2] = bytes(deltas)
        content += pairs
    else:
        for one, delta in zip(offsets, deltas, strict=True):
            _append_offset(content, delta, unfinished[one])
    return PREFIX + b64encode(content).decode()


def _append_offset(content: bytearray, delta: int, attempts: Attempts) -> None:
    _append_varint(content, delta)
    _append_varint(content, attempts.count)
    if attempts.count:
        _append_varint(content, attempts.first_failed_at or 0)


def decode(offset: int, text: str) -> tuple[int, dict[int, Attempts]]:
    """Return the highest taken offset and the unfinished ones with their attempts.

    Metadata of another kind of consumer means that nothing from `offset` on was taken.
    """
    if not text.startswith(PREFIX):
        return offset - 1, {}
    try:
        numbers = _read_varints(b64decode(text[len(PREFIX) :], validate=True))
        highest = offset + next(numbers) - 1
        return highest, dict(_read_offsets(offset, numbers))
    except (ValueError, StopIteration, RuntimeError) as error:
        raise LedgerCorrupt("the commit metadata of the group cannot be read") from error


def _read_offsets(offset: int, numbers: Iterator[int]) -> Iterator[tuple[int, Attempts]]:
    for delta in numbers:
        offset += delta
        count = next(numbers)
        first_failed_at = next(numbers) if count else 0
        yield offset, Attempts(count, first_failed_at or None)


def _append_varint(content: bytearray, number: int) -> None:
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)


def _read_varints(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("the last number is incomplete")
