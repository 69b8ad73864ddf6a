"""What a settlement lays into a box, and how a parked letter is read back."""

from collections.abc import Sequence
from dataclasses import replace

from deadletter.brokers.kafka.subscription.committer import PendingSettlement
from deadletter.brokers.kafka.subscription.offset_metadata import Attempts
from deadletter.brokers.types import Buried, Claim, Parked, Publication, StoredMessage, SubscriptionSpec
from deadletter.core import headers, times
from deadletter.core.letters import Message


def publications(verdicts: Sequence[PendingSettlement], spec: SubscriptionSpec, counts: dict[str, int]) -> list[Publication]:
    """The letters that go into dead and retry boxes; partition = that of the claim mod count."""
    made = []
    for verdict in verdicts:
        claim, how = verdict.claim, verdict.settlement
        if isinstance(how, Buried):
            partition = claim.place.partition % counts[how.box]
            made.append(Publication(how.box, how.message, claim.place, partition))
        elif isinstance(how, Parked):
            partition = claim.place.partition % counts[spec.retry]
            message = with_attempts(how.message, Attempts(claim.attempts, claim.first_failed_at))
            made.append(Publication(spec.retry, message, claim.place, partition, how.due_at))
    return made


def targets_of(verdicts: Sequence[PendingSettlement], spec: SubscriptionSpec) -> list[str]:
    """The boxes these settlements write to."""
    boxes = [how.box for verdict in verdicts if isinstance(how := verdict.settlement, Buried)]
    return boxes + [spec.retry for verdict in verdicts if isinstance(verdict.settlement, Parked)]


def with_attempts(message: Message, attempt: Attempts) -> Message:
    """The message with attempts and first failure, unless it carries more already."""
    carried = attempt_of(message)
    if not attempt.count or carried.count >= attempt.count:
        return message
    ours = (headers.ATTEMPTS, headers.FIRST_FAILED_AT)
    kept = tuple(pair for pair in message.headers if pair[0] not in ours)
    first = carried.first_failed_at or attempt.first_failed_at
    when = ((headers.FIRST_FAILED_AT, times.render(first).encode()),) if first is not None else ()
    return replace(message, headers=(*kept, (headers.ATTEMPTS, str(attempt.count).encode()), *when))


def attempt_of(message: Message) -> Attempts:
    """Attempts and first failure that a parked letter carries."""
    envelope = headers.read_headers(dict(message.headers))
    return Attempts(envelope.attempts, envelope.first_failed_at)


def due_at(message: Message) -> int:
    """When a parked letter is due; without a time: now."""
    return headers.read_headers(dict(message.headers)).due_at or 0


def parked_claim(one: StoredMessage) -> Claim:
    """A due letter as a claim; its due time has served its purpose."""
    kept = tuple(pair for pair in one.message.headers if pair[0] != headers.DUE_AT)
    attempt = attempt_of(one.message)
    message = replace(one.message, headers=kept)
    return Claim(one.place, message, attempt.count, attempt.first_failed_at, parked=True)
