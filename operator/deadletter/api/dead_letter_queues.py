"""DeadLetterQueue: a dead box, optionally with a source that the courier delivers."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from deadletter.api.base import Bool, Model, NameRef
from deadletter.api.cel_rules import CelRule, immutable
from deadletter.api.custom_resource import AGE, REASON_COLUMN, CustomResource, PrinterColumn, condition_column
from deadletter.api.delivery import Delivery
from deadletter.api.queue_spec import ANOTHER_QUEUE, Alerts, Capacity, DeadBox, Redaction, Redrive, Route, Source
from deadletter.api.queue_status import DeadLetterQueueStatus
from deadletter.api.worker_config import Boxes
from deadletter.core import names

Shape = Literal["Delivered", "Plain", "Adopted"]
MAX_DERIVED_NAME_CHARS = 242 - len("{}..dlq")


def _routes_elsewhere(queue: "DeadLetterQueue") -> bool:
    return all(route.queue_ref.name != queue.metadata.name for route in queue.spec.routes)


def _derived_fits(spec: "DeadLetterQueueSpec") -> bool:
    if spec.source is None or spec.dead.name is not None:
        return True
    return len(spec.source.name) + len(spec.source.group) <= MAX_DERIVED_NAME_CHARS


def _dead_is_apart(spec: "DeadLetterQueueSpec") -> bool:
    if spec.source is None or spec.dead.name is None:
        return True
    return spec.source.name not in {spec.dead.name, f"{spec.dead.name}.retry", f"{spec.dead.name}.ledger"}


class DeadLetterQueueSpec(Model):
    """Delivered queue with source and delivery, plain queue without both, adopted queue with dead.adopt."""

    constraints: ClassVar = (
        immutable("brokerRef", ANOTHER_QUEUE),
        immutable("source", ANOTHER_QUEUE),
        CelRule(
            "has(self.source) == has(self.delivery)",
            "set both source and delivery, or neither",
            lambda spec: (spec.source is None) == (spec.delivery is None),
        ),
        CelRule(
            "has(self.source) || has(self.dead.name)",
            "dead.name is required without source",
            lambda spec: spec.source is not None or spec.dead.name is not None,
            "dead",
        ),
        CelRule(
            "!has(self.source) || !self.dead.adopt",
            "dead.adopt cannot be combined with source: your own application fills an adopted box",
            lambda spec: spec.source is None or not spec.dead.adopt,
            "dead",
        ),
        CelRule(
            "!has(self.source) || has(self.dead.name) || "
            f"size(self.source.name) + size(self.source.group) <= {MAX_DERIVED_NAME_CHARS}",
            "dead.name is required: the default <source>.<group>.dlq is longer than 242 characters",
            _derived_fits,
            "dead",
        ),
        CelRule(
            "!has(self.source) || !has(self.dead.name) || !(self.source.name in "
            "[self.dead.name, self.dead.name + '.retry', self.dead.name + '.ledger'])",
            "dead.name, dead.name.retry and dead.name.ledger must differ from source.name",
            _dead_is_apart,
            "dead",
        ),
        CelRule(
            "self.redrive.strategy != 'Disabled' || self.dead.adopt",
            "redrive.strategy Disabled requires dead.adopt: set it, or use strategy Manual",
            lambda spec: spec.redrive.strategy != "Disabled" or spec.dead.adopt,
            "redrive",
        ),
        CelRule(
            "!has(self.delivery) || !(self.redrive.strategy in ['Automatic', 'Selective'])",
            "redrive.strategy Automatic and Selective cannot be combined with delivery: the courier retries by the "
            "policy",
            lambda spec: spec.delivery is None or spec.redrive.strategy not in {"Automatic", "Selective"},
            "redrive",
        ),
    )

    broker_ref: NameRef = Field(description="BrokerConnection of the queue.")
    retry_policy_ref: NameRef | None = Field(
        None,
        description="RetryPolicy of the queue. If unset, a built-in policy with 5 attempts and exponential backoff.",
    )
    source: Source | None = Field(None, description="Topic or stream that the courier consumes. Requires delivery.")
    delivery: Delivery | None = Field(None, description="How the courier delivers messages. Requires source.")
    dead: DeadBox = Field(default_factory=DeadBox, description="Topic or stream that stores the dead letters.")
    redrive: Redrive = Field(default_factory=Redrive, description="Whether letters are sent back automatically.")
    routes: tuple[Route, ...] = Field(
        (),
        max_length=16,
        description="Routes to other queues by failure. The first match wins; without a match a letter stays in "
        "this queue.",
    )
    capacity: Capacity | None = Field(None, description="Limit on the number of open letters. No limit if unset.")
    alerts: Alerts | None = Field(None, description="Thresholds for the condition Degraded. None if unset.")
    redaction: Redaction | None = Field(
        None, description="Parts of messages that are hidden when letters are listed. None if unset."
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        "Retain",
        description="What happens to the boxes when the queue is deleted. Retain: they are kept. Delete: they are "
        "deleted "
        "with all letters, except an adopted box.",
    )
    suspend: Bool = Field(False, description="Pause delivering and redriving while it is true.")


class DeadLetterQueue(CustomResource):
    """A queue of dead letters, optionally with a source whose messages a courier delivers to your service."""

    constraints: ClassVar = (
        CelRule(
            "!has(self.spec.routes) || self.spec.routes.all(r, r.queueRef.name != self.metadata.name)",
            "routes must not reference the queue itself",
            _routes_elsewhere,
            "spec.routes",
        ),
    )
    kind: ClassVar[str] = "DeadLetterQueue"
    plural: ClassVar[str] = "deadletterqueues"
    singular: ClassVar[str] = "deadletterqueue"
    short_names: ClassVar[tuple[str, ...]] = ("dlq",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Ready", "Ready"),
        PrinterColumn("Broker", ".spec.brokerRef.name", description="BrokerConnection of the queue."),
        PrinterColumn("Depth", ".status.depth", "integer", description="Number of open letters."),
        PrinterColumn(
            "Oldest", ".status.oldestLetterTime", "date", description="Time since the oldest open letter failed."
        ),
        REASON_COLUMN,
        PrinterColumn("Policy", ".status.policy.name", wide=True, description="RetryPolicy in use."),
        PrinterColumn("Dead", ".status.boxes.dead", wide=True, description="Name of the dead box."),
        PrinterColumn("Group", ".spec.source.group", wide=True, description="Consumer group of the courier."),
        PrinterColumn(
            "Util",
            ".status.utilization",
            "integer",
            wide=True,
            description="Open letters in percent of capacity.maxLetters.",
        ),
        AGE,
    )
    selectable: ClassVar[tuple[str, ...]] = (".spec.brokerRef.name", ".spec.retryPolicyRef.name")
    scale: ClassVar[Mapping[str, str]] = {
        "specReplicasPath": ".spec.delivery.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }

    spec: DeadLetterQueueSpec = Field(description="Desired state of the queue.")
    status: DeadLetterQueueStatus = Field(
        default_factory=DeadLetterQueueStatus, description="Observed state, written by the operator."
    )

    @property
    def shape(self) -> Shape:
        """Delivered: filled by our courier. Adopted: an existing box. Plain: created by us and filled by others."""
        if self.spec.source is not None:
            return "Delivered"
        return "Adopted" if self.spec.dead.adopt else "Plain"

    def boxes(self, redis: bool) -> Boxes:
        """Return the names of the queue's boxes on this kind of broker."""
        source = self.spec.source
        dead = self.spec.dead.name or names.dead_box_name(
            source.name if source else "", source.group if source else "", redis
        )
        return Boxes(
            source=source.name if source else None,
            dead=dead,
            retry=names.retry_box_name(dead) if source else None,
            ledger=names.ledger_name(dead),
        )

    def invalid_name_fields(self, redis: bool) -> tuple[str, ...]:
        """Return the fields whose names are invalid on this kind of broker, which a schema cannot check."""
        if redis:
            return ()
        source, dead = self.spec.source, self.spec.dead
        names_by_field = {"source.name": source.name if source else None, "dead.name": self.boxes(redis).dead}
        names_by_field |= {"dead.origin": dead.origin}
        return tuple(
            field for field, name in names_by_field.items() if name and not re.fullmatch(r"[A-Za-z0-9._-]+", name)
        )
