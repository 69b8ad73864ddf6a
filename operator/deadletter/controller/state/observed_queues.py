"""What the operator has read from the brokers about each queue; kept in memory, and read again after a restart."""

from dataclasses import dataclass, field

from deadletter.api.queue_status import OwnedBox
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import BoxState
from deadletter.core.box_types import BoxSpec, BoxStats
from deadletter.plan.facts import ParkedLetterLoss

QueueName = tuple[str, str]  # namespace and name


@dataclass(slots=True)
class BoxSurvey:
    """The boxes that a queue needs, as the broker described them."""

    planned: tuple[BoxSpec, ...]
    states: dict[str, BoxState]
    surveyed_at: float  # monotonic seconds
    ledger_problem: str | None = None  # what the broker refuses to give the ledger; None: not checked yet


@dataclass(slots=True)
class ObservedQueues:
    """The observations by queue."""

    stats: dict[QueueName, BoxStats] = field(default_factory=dict)  # of the last sweep
    read_errors: dict[QueueName, BrokerError] = field(default_factory=dict)  # that only reading the box shows
    surveys: dict[QueueName, BoxSurvey] = field(default_factory=dict)
    owned_boxes: dict[QueueName, tuple[OwnedBox, ...]] = field(default_factory=dict)  # not in the status yet
    losses: dict[QueueName, ParkedLetterLoss] = field(default_factory=dict)  # includes those the status reports

    def forget(self, namespace: str, queue: str) -> None:
        """Remove everything about a deleted queue."""
        for observed in (self.stats, self.read_errors, self.surveys, self.owned_boxes, self.losses):
            observed.pop((namespace, queue), None)
