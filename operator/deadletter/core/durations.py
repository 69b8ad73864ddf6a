"""Convert GEP-2257 durations such as `1h30m` or `500ms` to milliseconds and back."""

import re

_WHOLE = re.compile(r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}")
_PART = re.compile(r"([0-9]{1,5})(h|ms|m|s)")
_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
MAX_MS = 99_999 * 3_600_000 + 59 * 60_000 + 59 * 1_000 + 999


def parse(text: str) -> int:
    """Return the milliseconds of a duration string; ValueError if it is malformed."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(
            "a duration must be one to four numbers of up to five digits, each followed by h, m, s or ms: 1h30m"
        )
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def render(ms: int) -> str:
    """Return the duration string of milliseconds, in the largest units: `1h30m`."""
    if not 0 <= ms <= MAX_MS:
        raise ValueError("a duration must be between 0s and 99999h59m59s999ms")
    parts = []
    for unit, size in _UNITS.items():
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
