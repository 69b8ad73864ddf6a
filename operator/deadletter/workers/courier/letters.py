"""Turn a failed claim into a letter: its known history and its latest failure."""

from dataclasses import replace

from deadletter.brokers.types import Claim
from deadletter.core.headers import add_headers, read_headers, rename_spoofed
from deadletter.core.letters import Envelope, Failure, Letter, Message, Origin, Place
from deadletter.workers.delivery.base import DeliveryMetadata, idempotency_key


def _known_envelope(claim: Claim) -> Envelope:
    # A parked letter has headers of ours. Those of a source message come from its sender, except the replay count.
    known = read_headers(dict(claim.message.headers))
    if claim.parked and known.origin.topic is not None:
        return replace(known, id=known.id or idempotency_key(claim.place))
    place, timestamp, name = claim.place, claim.message.timestamp, idempotency_key(claim.place)
    if claim.parked:
        timestamp, name = known.origin.timestamp or timestamp, known.id or name
    origin = Origin(place.box, place.partition, place.offset, timestamp)
    return Envelope(origin=origin, hop=origin, id=name, replays=known.replays, replay=known.replay)


def message_id(claim: Claim) -> str:
    """Return the id of a message, which stays the same however often it is parked."""
    return delivery_metadata(claim).id


def delivery_metadata(claim: Claim) -> DeliveryMetadata:
    """Return what the next delivery tells the service about the message of a claim."""
    if not claim.parked:
        return DeliveryMetadata(idempotency_key(claim.place), claim.place, claim.attempts + 1)
    known = _known_envelope(claim)
    origin = known.origin
    place = Place(origin.topic or claim.place.box, origin.partition or 0, origin.offset or 0)
    # The parked message may have another timestamp: an entry of a Redis stream has that of its own id.
    return DeliveryMetadata(known.id or idempotency_key(place), place, claim.attempts + 1, origin.timestamp)


def restore_attempts(claim: Claim) -> Claim:
    """Take the attempts of a parked letter from its headers, so that a restart goes on counting."""
    if claim.parked:
        known = read_headers(dict(claim.message.headers))
        claim.attempts = max(claim.attempts, known.attempts)
        if claim.first_failed_at is None and claim.attempts:
            claim.first_failed_at = known.first_failed_at
    return claim


def failed_letter(claim: Claim, failure: Failure, group: str, now: int) -> Letter:
    """Return the letter of a claim whose delivery has just failed; its `attempts` include this failure."""
    envelope = replace(
        _known_envelope(claim),
        group=group,
        attempts=claim.attempts + 1,
        first_failed_at=claim.first_failed_at if claim.first_failed_at is not None else now,
        failed_at=now,
        failure=failure,
        reason="",
        due_at=None,
    )
    return Letter(claim.message if claim.parked else rename_spoofed(claim.message), claim.place, envelope)


def parked_message(letter: Letter, due_at: int) -> Message:
    """Return the message to write into the retry box."""
    return add_headers(letter.message, replace(letter.envelope, due_at=due_at))


def buried_message(letter: Letter, reason: str, compat: tuple[str, ...] = ()) -> Message:
    """Return the message to write into a dead box, with the failure time, from which retention counts."""
    message = add_headers(letter.message, replace(letter.envelope, reason=reason), compat)
    return replace(message, timestamp=letter.envelope.failed_at or message.timestamp)


def without_failure_details(letter: Letter) -> Letter:
    """Return the letter without the message and stack of its failure, for a box that finds it too large."""
    failure = replace(letter.envelope.failure, message="", stack="")
    return replace(letter, envelope=replace(letter.envelope, failure=failure))
