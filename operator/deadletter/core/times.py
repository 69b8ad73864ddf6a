"""Convert ISO-8601 times to milliseconds since the epoch and back."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE = datetime(1970, 1, 1)  # noqa: DTZ001  (its text carries no offset)
MIN_MS = -62_135_596_800_000  # the year 1
MAX_MS = 253_402_300_799_999  # the end of the year 9999


def parse(text: str) -> int:
    """Return the milliseconds of an ISO-8601 time, UTC if it has no offset; ValueError if it is malformed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time must be ISO-8601, such as 2026-11-16T00:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    past = moment - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000 + past.microseconds // 1_000


def clamp(ms: int) -> int:
    """Return the nearest time between the years 1 and 9999; a foreign letter may claim any time."""
    return min(max(ms, MIN_MS), MAX_MS)


def render(ms: int) -> str:
    """Return the time as `2026-11-16T00:00:00Z`, clamped; milliseconds are appended as `.123` unless they are zero."""
    seconds, rest = divmod(clamp(ms), 1_000)
    moment = _NAIVE + timedelta(0, seconds, rest * 1_000)
    return moment.isoformat(timespec="milliseconds" if rest else "seconds") + "Z"


def render_second(ms: int) -> str:
    """Return a time as text, rounded down to its second, as Kubernetes writes times."""
    return render(clamp(ms) // 1_000 * 1_000)
