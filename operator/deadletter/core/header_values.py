"""Numbers and times in headers, as the many systems write them: decimal text, big-endian integers, BigInteger bytes."""

import re

from deadletter.core import times

_DECIMAL = re.compile(rb"-?[0-9]{1,20}")
_FLOAT = re.compile(rb"[0-9]{1,14}\.[0-9]{1,9}")
_NSERVICEBUS = re.compile(r"^(.{19}):([0-9]{6}) Z$")  # 2026-11-16 10:00:00:123456 Z
_LARGEST = 1 << 63


def parse_number(raw: bytes | None) -> int | None:
    """The number in a header, in whichever of the known forms; None when it is null, empty or too long.

    Decimal text first: four or eight digit bytes read as binary would be a partition or time that cannot exist.
    """
    if not raw:
        return None
    if raw.isdigit() and len(raw) < 19:  # the usual one, without asking further
        return int(raw)
    if _DECIMAL.fullmatch(raw):
        value = int(raw)
    elif len(raw) == 1:
        value = raw[0]
    elif len(raw) <= 8:
        value = int.from_bytes(raw, "big", signed=True)
    else:
        return None
    return value if -_LARGEST <= value < _LARGEST else None


def parse_position(raw: bytes | None) -> int | None:
    """A partition or an offset: a number that is not negative (-1 means: unknown)."""
    value = parse_number(raw)
    return None if value is None or value < 0 else value


def parse_time(raw: bytes | None) -> int | None:
    """Milliseconds of a time in a header: epoch in s, ms, us or ns, as text or binary, or ISO-8601; None otherwise."""
    if not raw:
        return None
    if _FLOAT.fullmatch(raw):
        return time_in_range(round(float(raw) * 1_000))
    if len(raw) <= 8 or _DECIMAL.fullmatch(raw):
        return epoch_to_ms(parse_number(raw))
    return _written(raw[:64].decode("utf-8", "replace").strip().strip('"'))


def epoch_to_ms(value: int | None) -> int | None:
    """Milliseconds of an epoch number whose unit its size tells."""
    if value is None or value <= 0:
        return None
    if value < 100_000_000_000:
        return value * 1_000
    while value >= 100_000_000_000_000:
        value //= 1_000
    return time_in_range(value)


def time_in_range(ms: int) -> int | None:
    """The time if it can be written, else None."""
    return ms if times.MIN_MS <= ms <= times.MAX_MS else None


def _written(text: str) -> int | None:
    try:
        return times.parse(_NSERVICEBUS.sub(r"\1.\2Z", text))
    except ValueError:
        return None
