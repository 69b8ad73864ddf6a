"""The outcome of one delivery attempt, whatever the protocol."""

from dataclasses import dataclass

from deadletter.core.circuit_breaker import ServiceHealth
from deadletter.core.letters import Category, Failure

COURIER_ERROR = "CourierError"
OUTAGE_STATUSES = frozenset({502, 503, 504})  # sent by a proxy in front of the service, not by the service
MESSAGE_CATEGORIES = frozenset({Category.Permission, Category.Validation, Category.Permanent})


@dataclass(slots=True, frozen=True)
class DeliveryOutcome:
    """The result of one attempt: delivered if `failure` is unset.

    `fault` is the Reason to pause the queue for: a problem of the target that every message would meet.
    """

    failure: Failure | None = None
    retry_after: int | None = None  # milliseconds that the service asks to wait
    requested_action: str | None = None  # retry, bury or discard, if the service asks for one
    fault: str = ""
    has_success_status: bool = False  # set even if the service also requests an action

    @property
    def service_health(self) -> ServiceHealth:
        """What the outcome shows about the service. A service that refuses a message works."""
        failure = self.failure
        if failure is None or failure.category in MESSAGE_CATEGORIES:
            return ServiceHealth.Up
        if failure.category is Category.Network or failure.status in OUTAGE_STATUSES:
            return ServiceHealth.Down
        return ServiceHealth.Failed

    @property
    def is_accepted(self) -> bool:
        """True if the service accepted the message, also if it requests an action for it."""
        return self.failure is None or self.has_success_status

    @property
    def is_answered(self) -> bool:
        """True if the service itself answered, with any status but 502 to 504, which come from a proxy."""
        return self.failure is None or (self.failure.status is not None and self.failure.status not in OUTAGE_STATUSES)

    @property
    def is_courier_error(self) -> bool:
        """True if the courier itself failed on the message, which says nothing about message or service."""
        return self.failure is not None and self.failure.type == COURIER_ERROR

    @property
    def may_be_poison(self) -> bool:
        """True if the application or the courier failed on this message, which may fail them every time."""
        if self.failure is None or self.is_courier_error:
            return self.failure is not None
        status = self.failure.status
        return status is not None and status >= 500 and status not in OUTAGE_STATUSES

    @property
    def metric_label(self) -> str:
        """The value of the `outcome` label of the delivery metric."""
        if self.fault:
            return "fault"
        return "delivered" if self.failure is None else "failed"


DELIVERED_OUTCOME = DeliveryOutcome(has_success_status=True)


def outcome_of_courier_error(origin: str) -> DeliveryOutcome:
    """Return a transient failure for an unexpected error of the courier: the policy retries, other messages pass."""
    message = f"the courier failed on this message: {origin}"
    return DeliveryOutcome(Failure(COURIER_ERROR, message, Category.Transient))
