"""Parse numbers and times in headers of other systems: decimal text, big-endian integers, BigInteger bytes."""

import re

from deadletter.core import times

_DECIMAL = re.compile(rb"-?[0-9]{1,20}")
_FLOAT = re.compile(rb"[0-9]{1,14}\.[0-9]{1,9}")
_NSERVICEBUS = re.compile(r"^(.{19}):([0-9]{6}) Z$")  # 2026-11-16 10:00:00:123456 Z
_INT64_LIMIT = 1 << 63


def parse_number(raw: bytes | None) -> int | None:
    """Return the number in a header, in any of the known forms; None if it is null, empty or too long.

    Decimal text is tried first: four or eight ASCII digits read as binary give an impossible partition or time.
    """
    if not raw:
        return None
    if raw.isdigit() and len(raw) < 19:  # fast path
        return int(raw)
    if _DECIMAL.fullmatch(raw):
        value = int(raw)
    elif len(raw) == 1:
        value = raw[0]
    elif len(raw) <= 8:
        value = int.from_bytes(raw, "big", signed=True)
    else:
        return None
    return value if -_INT64_LIMIT <= value < _INT64_LIMIT else None


def parse_position(raw: bytes | None) -> int | None:
    """Return a partition or offset; None if it is negative, because -1 means unknown."""
    value = parse_number(raw)
    return None if value is None or value < 0 else value


def parse_time(raw: bytes | None) -> int | None:
    """Return the ms of a time in a header: epoch in s, ms, us or ns, as text or binary, or ISO-8601; else None."""
    if not raw:
        return None
    if _FLOAT.fullmatch(raw):
        return time_in_range(round(float(raw) * 1_000))
    if len(raw) <= 8 or _DECIMAL.fullmatch(raw):
        return epoch_to_ms(parse_number(raw))
    return _parse_iso(raw[:64].decode("utf-8", "replace").strip().strip('"'))


def epoch_to_ms(value: int | None) -> int | None:
    """Return the milliseconds of an epoch number; its magnitude tells its unit."""
    if value is None or value <= 0:
        return None
    if value < 100_000_000_000:
        return value * 1_000
    while value >= 100_000_000_000_000:
        value //= 1_000
    return time_in_range(value)


def time_in_range(ms: int) -> int | None:
    """Return the time if it lies between the years 1 and 9999, else None."""
    return ms if times.MIN_MS <= ms <= times.MAX_MS else None


def _parse_iso(text: str) -> int | None:
    try:
        return times.parse(_NSERVICEBUS.sub(r"\1.\2Z", text))
    except ValueError:
        return None
