"""Keep attempts and due time of a parked letter in its own headers, and turn a due letter back into a claim."""

from dataclasses import replace

from deadletter.brokers.types import Claim
from deadletter.core import headers, times
from deadletter.core.letters import Message, Place


def add_attempts(message: Message, claim: Claim) -> Message:
    """Return the message with the claim's attempts and first failure, unless it carries at least as many attempts."""
    carried = headers.read_headers(dict(message.headers))
    if not claim.attempts or carried.attempts >= claim.attempts:
        return message
    replaced = (headers.ATTEMPTS, headers.FIRST_FAILED_AT)
    others = tuple(pair for pair in message.headers if pair[0] not in replaced)
    first = carried.first_failed_at or claim.first_failed_at
    first_failure = ((headers.FIRST_FAILED_AT, times.render(first).encode()),) if first is not None else ()
    return replace(message, headers=(*others, (headers.ATTEMPTS, str(claim.attempts).encode()), *first_failure))


def set_due_time(message: Message, due_at: int) -> Message:
    """Return the message with the time at which it is due, in ms."""
    due = (headers.DUE_AT, times.render(due_at).encode())
    return replace(message, headers=(*_without_due_time(message), due))


def read_due_time(message: Message) -> int:
    """Return when a parked letter is due, in ms; 0, which is in the past, if it does not say."""
    return headers.read_headers(dict(message.headers)).due_at or 0


def to_claim(place: Place, message: Message) -> Claim:
    """Return a due letter as a claim, without its due time.

    Its timestamp is that of the message at its origin: the retry box gives it the time at which it was parked.
    """
    carried = headers.read_headers(dict(message.headers))
    timestamp = carried.origin.timestamp or message.timestamp
    message = replace(message, headers=_without_due_time(message), timestamp=timestamp)
    return Claim(place, message, carried.attempts, carried.first_failed_at, parked=True)


def _without_due_time(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(pair for pair in message.headers if pair[0] != headers.DUE_AT)
