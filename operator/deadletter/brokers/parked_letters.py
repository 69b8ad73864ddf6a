"""A parked letter carries its attempts itself, in our headers."""

from dataclasses import replace

from deadletter.brokers.types import Claim
from deadletter.core import headers, times
from deadletter.core.letters import Message, Place


def to_park(message: Message, claim: Claim) -> Message:
    """The message with the claim's attempts and first failure, unless it carries more already."""
    carried = headers.read_headers(dict(message.headers))
    if not claim.attempts or carried.attempts >= claim.attempts:
        return message
    ours = (headers.ATTEMPTS, headers.FIRST_FAILED_AT)
    kept = tuple(pair for pair in message.headers if pair[0] not in ours)
    first = carried.first_failed_at or claim.first_failed_at
    when = ((headers.FIRST_FAILED_AT, times.render(first).encode()),) if first is not None else ()
    return replace(message, headers=(*kept, (headers.ATTEMPTS, str(claim.attempts).encode()), *when))


def parked_claim(place: Place, message: Message) -> Claim:
    """A due letter as a claim; its due time has served its purpose."""
    carried = headers.read_headers(dict(message.headers))
    kept = tuple(pair for pair in message.headers if pair[0] != headers.DUE_AT)
    return Claim(place, replace(message, headers=kept), carried.attempts, carried.first_failed_at, parked=True)
