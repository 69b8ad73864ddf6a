"""A claim that failed becomes a letter: what is known of it so far and its newest failure."""

from dataclasses import replace

from deadletter.brokers.types import Claim
from deadletter.core.headers import add_headers, read_headers, rename_spoofed
from deadletter.core.letters import Envelope, Failure, Letter, Message, Origin, Place
from deadletter.workers.delivery.http.request import DeliveryMetadata, idempotency_key


def _known(claim: Claim) -> Envelope:
    # A parked letter carries our own headers; those on a message of the source are the sender's, but for its replays.
    known = read_headers(dict(claim.message.headers))
    if claim.parked and known.origin.topic is not None:
        return replace(known, id=known.id or idempotency_key(claim.place))
    place, timestamp, name = claim.place, claim.message.timestamp, idempotency_key(claim.place)
    if claim.parked:
        timestamp, name = known.origin.timestamp or timestamp, known.id or name
    origin = Origin(place.box, place.partition, place.offset, timestamp)
    return Envelope(origin=origin, hop=origin, id=name, replays=known.replays, replay=known.replay)


def message_id(claim: Claim) -> str:
    """The name of a message that stays the same however often it is parked."""
    return delivery_metadata(claim).id


def delivery_metadata(claim: Claim) -> DeliveryMetadata:
    """What the next request says of a claim."""
    if not claim.parked:
        return DeliveryMetadata(idempotency_key(claim.place), claim.place, claim.attempts + 1)
    known = _known(claim)
    origin = known.origin
    place = Place(origin.topic or claim.place.box, origin.partition or 0, origin.offset or 0)
    # Where it was parked it may have got another time: an entry of a Redis stream has that of its own id.
    return DeliveryMetadata(known.id or idempotency_key(place), place, claim.attempts + 1, origin.timestamp)


def restore_attempts(claim: Claim) -> Claim:
    """The same claim, told what its own headers say if it was parked: attempts survive every restart."""
    if claim.parked:
        known = read_headers(dict(claim.message.headers))
        claim.attempts = max(claim.attempts, known.attempts)
        if claim.first_failed_at is None and claim.attempts:
            claim.first_failed_at = known.first_failed_at
    return claim


def failed_letter(claim: Claim, failure: Failure, group: str, now: int) -> Letter:
    """The letter of a claim whose delivery has just failed; `attempts` counts it."""
    envelope = replace(
        _known(claim),
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
    """How it lies in the retry box."""
    return add_headers(letter.message, replace(letter.envelope, due_at=due_at))


def buried_message(letter: Letter, reason: str, compat: tuple[str, ...] = ()) -> Message:
    """How it lies in a dead box: as of its failure, for that is from when the box's retention counts."""
    written = add_headers(letter.message, replace(letter.envelope, reason=reason), compat)
    return replace(written, timestamp=letter.envelope.failed_at or written.timestamp)


def without_failure_details(letter: Letter) -> Letter:
    """The same letter with as little of an envelope as still names it: for a box that finds it too large."""
    failure = replace(letter.envelope.failure, message="", stack="")
    return replace(letter, envelope=replace(letter.envelope, failure=failure))
