"""Build letters for tests."""

from deadletter.core.failure_categories import failure_from_error, failure_from_status
from deadletter.core.letters import Envelope, Failure, Letter, Message, Place

NOW = 1_700_000_000_000


def letter(
    attempts: int = 1,
    failure: Failure | str | int | None = None,
    first_failed_at: int | None = NOW,
    value: bytes | None = b'{"a": 1}',
    headers: tuple[tuple[str, bytes | None], ...] = (),
    key: bytes | None = b"key",
    place: Place | None = None,
    **envelope: object,
) -> Letter:
    """Return a letter that has just failed; `failure` may be an HTTP status or an error type."""
    if not isinstance(failure, Failure):
        failure = failure_from_status(failure) if isinstance(failure, int) else failure_from_error(failure or "Timeout")
    metadata = Envelope(attempts=attempts, first_failed_at=first_failed_at, failed_at=NOW, failure=failure, **envelope)
    return Letter(Message(key, value, headers, NOW - 1_000), place or Place("orders.dlq", 2, 7), metadata)
