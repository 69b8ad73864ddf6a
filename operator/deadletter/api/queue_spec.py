"""The parts of a DeadLetterQueue's spec: source, dead box, redrive, routes, bounds."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from deadletter.api.base import (
    Bool,
    BoundedText,
    BoxName,
    Duration,
    Expression,
    HeaderName,
    Int,
    Model,
    NameRef,
    ShortExpression,
)
from deadletter.api.broker_connections import TopicConfig, config_rule
from deadletter.api.cel_rules import CelRule, immutable, positive_duration
from deadletter.core import durations
from deadletter.core.dialects.registry import DIALECT_NAMES

CompatName = Literal["KafkaConnect", "Spring"]
DIALECTS = ("Auto", *DIALECT_NAMES)
ANOTHER_QUEUE = "create another queue instead"


class Source(Model):
    """What the courier reads."""

    name: Annotated[BoxName, Field(description="Topic or stream.")]
    group: Annotated[
        str,
        BoundedText(
            200, r"[A-Za-z0-9._:/-]+", "must be the name of a group: letters, digits, '.', '_', '-', ':' and '/'"
        ),
        Field(description="Consumer group; it belongs to the courier alone."),
    ]
    start_from: Literal["Latest", "Earliest"] = Field(
        "Latest",
        description="Where a new group begins. A group that has started and lost its offsets does not begin again: it "
        "waits for the annotation deadletter.dev/resume-from.",
    )


class DeadBox(Model):
    """The topic or stream that dead letters lie in."""

    constraints: ClassVar = (
        immutable("name", ANOTHER_QUEUE),
        immutable("adopt", ANOTHER_QUEUE),
        CelRule(
            "!self.adopt || has(self.name)",
            "adopt needs dead.name: which topic or stream is it?",
            lambda dead: not dead.adopt or dead.name,
            "name",
        ),
        CelRule(
            "!self.adopt || !(has(self.partitions) || has(self.replicationFactor) || "
            "(has(self.config) && self.config.size() > 0))",
            "adopt takes the box as it is: remove partitions, replicationFactor and config",
            lambda dead: not dead.adopt or not (dead.partitions or dead.replication_factor or dead.config),
            "adopt",
        ),
        CelRule(
            "!has(self.partitions) || !has(oldSelf.partitions) || self.partitions >= oldSelf.partitions",
            "partitions never shrink: letters would be lost",
            field="partitions",
        ),
        positive_duration("retention", "retention"),
        config_rule("config"),
    )

    name: BoxName | None = Field(
        None,
        description="Default: <source>.<group>.dlq, on Redis {<source>}.<group>.dlq. Required without source.",
    )
    adopt: Bool = Field(False, description="It exists already: never create, configure or delete it.")
    dialect: Annotated[str, BoundedText(64, "|".join(DIALECTS), f"must be one of {', '.join(DIALECTS)}")] = Field(
        "Auto", description="How its letters tell their failure: Auto, or the name of one dialect."
    )
    read_values: Bool = Field(False, description="Also look for dialects that live in the message's value.")
    origin: BoxName | None = Field(
        None, description="The topic its letters came from, for dialects that do not name one."
    )
    partitions: Int | None = Field(
        None,
        ge=1,
        le=10000,
        description="Partitions of the dead box; may grow, never shrink. Absent: as the broker says.",
    )
    replication_factor: Int | None = Field(
        None,
        ge=1,
        le=100,
        description="Replicas of the dead box, its retry box and its ledger. The broker's default if unset.",
    )
    retention: Duration = Field(
        "720h", description="How long letters are kept. An adopted box keeps its own retention."
    )
    config: TopicConfig = Field(default_factory=dict)
    compat_headers: tuple[CompatName, ...] = Field(
        (),
        max_length=2,
        description="Systems whose headers the courier writes beside ours, so that their tools understand them.",
    )

    @property
    def retention_ms(self) -> int:
        """The retention in milliseconds."""
        return durations.parse(self.retention)


class Redrive(Model):
    """Whether letters go back without being asked."""

    constraints: ClassVar = (
        CelRule(
            "(self.strategy == 'Selective') == has(self.where)",
            "strategy Selective needs where, and where needs strategy Selective",
            lambda redrive: (redrive.strategy == "Selective") == (redrive.where is not None),
            "where",
        ),
    )

    strategy: Literal["Manual", "Automatic", "Selective", "Disabled"] = Field(
        "Manual",
        description="Manual: only a Replay acts. Automatic: letters go back to their origin after the policy's "
        "backoff. Selective: those that `where` takes. Disabled: only observe an adopted queue.",
    )
    where: Expression | None = Field(None, description="CEL over a letter, with Selective.")


class Route(Model):
    """Letters of one sort of failure go to another queue."""

    match: Annotated[ShortExpression, Field(description="CEL over a letter; true: it goes there.")]
    queue_ref: NameRef = Field(description="The queue whose dead box takes them.")


class Capacity(Model):
    """How much may lie there."""

    max_letters: Int = Field(ge=1, le=1_000_000_000_000, description="Open letters at most.")
    on_full: Literal["Pause", "Alert"] = Field(
        "Pause", description="Pause: stop delivering and redriving until there is room. Alert: only say so."
    )


class Alerts(Model):
    """When the queue is called Degraded; the chart's alerts use the same numbers."""

    constraints: ClassVar = (positive_duration("age", "age"),)

    depth: Int | None = Field(None, ge=1, le=1_000_000_000_000, description="More open letters than this.")
    age: Duration | None = Field(None, description="An open letter older than this.")

    @property
    def age_ms(self) -> int | None:
        """The age in milliseconds."""
        return None if self.age is None else durations.parse(self.age)


class Redaction(Model):
    """What is never shown when letters are listed."""

    headers: tuple[HeaderName, ...] = Field((), max_length=64, description="Headers whose values are hidden.")
    json_pointers: tuple[
        Annotated[str, BoundedText(256, r"(?:/(?:[ -.0-}]|~[01])*)+", "must be a JSON pointer such as /card/number")],
        ...,
    ] = Field((), max_length=64, description="Parts of a JSON value that are hidden.")
