"""Turn an HTTP response or error into a delivery outcome."""

from dataclasses import replace
from email.utils import parsedate_to_datetime

from deadletter.core.failure_categories import MAX_TYPE_CHARS, failure_from_error, failure_from_status
from deadletter.core.reasons import Reason
from deadletter.workers.delivery.http.connection import Response
from deadletter.workers.delivery.http.errors import CertificateRejected, HttpError, TargetForbidden
from deadletter.workers.delivery.outcome import DELIVERED_OUTCOME, DeliveryOutcome

REQUESTABLE_ACTIONS = frozenset({"retry", "bury", "discard"})
MAX_MESSAGE_BYTES = 1024
FAULT_REASONS = {TargetForbidden: Reason.TargetForbidden, CertificateRejected: Reason.CertificateRefused}


def outcome_of_response(response: Response, *, is_success: bool, now: int) -> DeliveryOutcome:
    """Return the outcome of a response. A `Dlq-Action` header counts even if the status means success."""
    action = response.headers.get("dlq-action", "").strip().lower()
    if is_success and action not in REQUESTABLE_ACTIONS:
        return DELIVERED_OUTCOME
    failure = failure_from_status(response.status, _message_text(response.body))
    error_type = response.headers.get("dlq-error-type", "").strip()
    if error_type:
        failure = replace(failure, type=error_type[:MAX_TYPE_CHARS])
    return DeliveryOutcome(
        failure,
        parse_retry_after(response.headers.get("retry-after"), now),
        action if action in REQUESTABLE_ACTIONS else None,
        has_success_status=is_success,
    )


def outcome_of_error(error: HttpError) -> DeliveryOutcome:
    """Return the outcome of an attempt that got no response."""
    failure = failure_from_error(error.kind, str(error))
    if not error.is_target_fault:
        return DeliveryOutcome(failure)
    return DeliveryOutcome(failure, fault=FAULT_REASONS.get(type(error), Reason.TargetUnresolvable))


def parse_retry_after(text: str | None, now: int) -> int | None:
    """Return the milliseconds to wait from a Retry-After header (seconds or HTTP date); None if it is not valid."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return int(text[:9]) * 1000
    try:
        return max(int(parsedate_to_datetime(text).timestamp() * 1000) - now, 0) if text else None
    except (ValueError, OverflowError):
        return None


def _message_text(body: bytes) -> str:
    return " ".join(body[:MAX_MESSAGE_BYTES].decode("utf-8", "replace").split())
