"""What came of one delivery."""

from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from deadletter.core.circuit_breaker import ServiceHealth
from deadletter.core.failures import MAX_TYPE_CHARS, failure_from_error, failure_from_status
from deadletter.core.letters import Category, Failure
from deadletter.core.reasons import Reason
from deadletter.workers.delivery.http.errors import CertificateRefused, HttpError, TargetForbidden
from deadletter.workers.delivery.http.response import Answer

ASKED = frozenset({"retry", "bury", "discard"})
MESSAGE_BYTES = 1024
OUTAGES = frozenset({502, 503, 504})
OURS = "CourierError"
FAULTS = {TargetForbidden: Reason.TargetForbidden, CertificateRefused: Reason.CertificateRefused}
OF_MESSAGE = frozenset({Category.Permission, Category.Validation, Category.Permanent})


@dataclass(slots=True, frozen=True)
class Outcome:
    """Done, when there is no failure. `fault` is a Reason to pause for: the queue's trouble, not the message's."""

    failure: Failure | None = None
    retry_after: int | None = None  # ms
    asked: str | None = None
    fault: str = ""

    @property
    def sign(self) -> ServiceHealth:
        """What it shows of the service. One that refuses a message works."""
        failure = self.failure
        if failure is None or failure.category in OF_MESSAGE:
            return ServiceHealth.Up
        return (
            ServiceHealth.Down
            if failure.category is Category.Network or failure.status in OUTAGES
            else ServiceHealth.Failed
        )

    @property
    def is_answered(self) -> bool:
        """True if the service itself answered, whatever it said; 502 to 504 come from what stands before it."""
        return self.failure is None or (self.failure.status is not None and self.failure.status not in OUTAGES)

    @property
    def may_be_poison(self) -> bool:
        """Did the application itself, or the courier, break over this message? It may be broken for all of them."""
        if self.failure is None or self.failure.type == OURS:
            return self.failure is not None
        status = self.failure.status
        return status is not None and status >= 500 and status not in OUTAGES

    @property
    def word(self) -> str:
        """The outcome as a metric's label."""
        if self.fault:
            return "fault"
        return "delivered" if self.failure is None else "failed"


DONE = Outcome()


def of_answer(answer: Answer, *, is_success: bool, now: int) -> Outcome:
    """The outcome of an answer; a `Dlq-Action` counts even beside a success."""
    asked = answer.headers.get("dlq-action", "").strip().lower()
    if is_success and asked not in ASKED:
        return DONE
    failure = failure_from_status(answer.status, _text(answer.body))
    named = answer.headers.get("dlq-error-type", "").strip()
    if named:
        failure = replace(failure, type=named[:MAX_TYPE_CHARS])
    return Outcome(failure, retry_after(answer.headers.get("retry-after"), now), asked if asked in ASKED else None)


def of_error(error: HttpError) -> Outcome:
    """The outcome of a delivery without an answer."""
    failure = failure_from_error(error.kind, str(error))
    if not error.is_of_queue:
        return Outcome(failure)
    return Outcome(failure, fault=FAULTS.get(type(error), Reason.TargetUnresolvable))


def of_own_fault(origin: str) -> Outcome:
    """The courier itself broke over this message: one more try by the policy may help, and others shall pass."""
    return Outcome(Failure(OURS, f"the courier broke over this message: {origin}", Category.Transient))


def retry_after(text: str | None, now: int) -> int | None:
    """Milliseconds that a Retry-After header asks for, in either of its forms; None when it says nothing."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return int(text[:9]) * 1000
    try:
        return max(int(parsedate_to_datetime(text).timestamp() * 1000) - now, 0) if text else None
    except (ValueError, OverflowError):
        return None


def _text(body: bytes) -> str:
    return " ".join(body[:MESSAGE_BYTES].decode("utf-8", "replace").split())
