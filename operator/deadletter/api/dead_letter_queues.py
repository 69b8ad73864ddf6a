"""DeadLetterQueue: where letters of a source lie, who delivers it, and what is known of what lies there."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from deadletter.api.assignments import Boxes
from deadletter.api.base import Bool, Model, NameRef
from deadletter.api.cel_rules import CelRule, immutable
from deadletter.api.delivery import Delivery, HttpDelivery, ServiceRef
from deadletter.api.kinds import AGE, REASON_COLUMN, CustomResource, PrinterColumn, condition_column
from deadletter.api.queue_spec import ANOTHER_QUEUE, Alerts, Capacity, DeadBox, Redaction, Redrive, Route, Source
from deadletter.api.queue_status import DeadLetterQueueStatus
from deadletter.core import names

__all__ = [
    "Alerts",
    "Boxes",
    "Capacity",
    "DeadBox",
    "DeadLetterQueue",
    "DeadLetterQueueSpec",
    "Delivery",
    "HttpDelivery",
    "NameRef",
    "Redaction",
    "Redrive",
    "Route",
    "ServiceRef",
    "Shape",
    "Source",
]

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
    """With source and delivery a delivered queue; without both a plain one, or with dead.adopt an adopted one."""

    constraints: ClassVar = (
        immutable("brokerRef", ANOTHER_QUEUE),
        immutable("source", ANOTHER_QUEUE),
        CelRule(
            "has(self.source) == has(self.delivery)",
            "source and delivery belong together: set both or neither",
            lambda spec: (spec.source is None) == (spec.delivery is None),
        ),
        CelRule(
            "has(self.source) || has(self.dead.name)",
            "a queue without source needs dead.name",
            lambda spec: spec.source is not None or spec.dead.name is not None,
            "dead",
        ),
        CelRule(
            "!has(self.source) || !self.dead.adopt",
            "an adopted queue has no source and delivery: an application of yours fills it",
            lambda spec: spec.source is None or not spec.dead.adopt,
            "dead",
        ),
        CelRule(
            "!has(self.source) || has(self.dead.name) || "
            f"size(self.source.name) + size(self.source.group) <= {MAX_DERIVED_NAME_CHARS}",
            "dead.name is needed: <source>.<group>.dlq would be longer than 242 characters",
            _derived_fits,
            "dead",
        ),
        CelRule(
            "!has(self.source) || !has(self.dead.name) || !(self.source.name in "
            "[self.dead.name, self.dead.name + '.retry', self.dead.name + '.ledger'])",
            "dead.name, and the names made from it, must differ from source.name",
            _dead_is_apart,
            "dead",
        ),
        CelRule(
            "self.redrive.strategy != 'Disabled' || self.dead.adopt",
            "redrive Disabled is for adopted queues: set dead.adopt, or use strategy Manual",
            lambda spec: spec.redrive.strategy != "Disabled" or spec.dead.adopt,
            "redrive",
        ),
        CelRule(
            "!has(self.delivery) || !(self.redrive.strategy in ['Automatic', 'Selective'])",
            "redrive Automatic and Selective are for queues without delivery: the courier retries by the policy",
            lambda spec: spec.delivery is None or spec.redrive.strategy not in {"Automatic", "Selective"},
            "redrive",
        ),
    )

    broker_ref: NameRef = Field(description="The BrokerConnection.")
    retry_policy_ref: NameRef | None = Field(
        None, description="The RetryPolicy. Absent: a built-in one of 5 attempts with exponential backoff."
    )
    source: Source | None = Field(None, description="What the courier reads; needs delivery.")
    delivery: Delivery | None = Field(None, description="How the courier delivers it; needs source.")
    dead: DeadBox = Field(default_factory=DeadBox, description="The topic or stream that dead letters lie in.")
    redrive: Redrive = Field(default_factory=Redrive, description="Whether letters go back without being asked.")
    routes: tuple[Route, ...] = Field(
        (), max_length=16, description="Other queues by failure, the first match; else this queue's own dead box."
    )
    capacity: Capacity | None = Field(None, description="How much may lie there. Absent: no bound.")
    alerts: Alerts | None = Field(None, description="When the queue is called degraded. Absent: never for these.")
    redaction: Redaction | None = Field(None, description="What is never shown when letters are listed.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        "Retain",
        description="Retain: the boxes stay when the queue goes. Delete: they go too, with all letters; an adopted "
        "box never does.",
    )
    suspend: Bool = Field(False, description="Stop delivering and redriving until it is false again.")


class DeadLetterQueue(CustomResource):
    """Where the dead letters of a source lie, who delivers the source, and what is known of what lies there."""

    constraints: ClassVar = (
        CelRule(
            "!has(self.spec.routes) || self.spec.routes.all(r, r.queueRef.name != self.metadata.name)",
            "routes: a queue cannot reference itself",
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
        PrinterColumn("Broker", ".spec.brokerRef.name", description="The BrokerConnection."),
        PrinterColumn("Depth", ".status.depth", "integer", description="Open letters."),
        PrinterColumn("Oldest", ".status.oldestLetterTime", "date", description="When the oldest open letter died."),
        REASON_COLUMN,
        PrinterColumn("Policy", ".status.policy.name", wide=True, description="The policy that is followed."),
        PrinterColumn("Dead", ".status.boxes.dead", wide=True, description="The dead box."),
        PrinterColumn("Group", ".spec.source.group", wide=True, description="The courier's consumer group."),
        PrinterColumn("Util", ".status.utilization", "integer", wide=True, description="Percent of capacity."),
        AGE,
    )
    selectable: ClassVar[tuple[str, ...]] = (".spec.brokerRef.name", ".spec.retryPolicyRef.name")
    scale: ClassVar[Mapping[str, str]] = {
        "specReplicasPath": ".spec.delivery.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }

    spec: DeadLetterQueueSpec = Field(description="What the queue should be.")
    status: DeadLetterQueueStatus = Field(
        default_factory=DeadLetterQueueStatus, description="What lies there; written by the operator."
    )

    @property
    def shape(self) -> Shape:
        """Delivered: a courier of ours. Adopted: it exists already. Plain: we make it, others fill it."""
        if self.spec.source is not None:
            return "Delivered"
        return "Adopted" if self.spec.dead.adopt else "Plain"

    def boxes(self, redis: bool) -> Boxes:
        """The names of its boxes on this sort of broker."""
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
        """Fields whose names this broker does not take; only the broker's kind tells, so no schema can."""
        if redis:
            return ()
        source, dead = self.spec.source, self.spec.dead
        named = {"source.name": source.name if source else None, "dead.name": self.boxes(redis).dead}
        named |= {"dead.origin": dead.origin}
        return tuple(field for field, name in named.items() if name and not re.fullmatch(r"[A-Za-z0-9._-]+", name))
