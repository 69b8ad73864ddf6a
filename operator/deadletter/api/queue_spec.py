"""Parts of the spec of a DeadLetterQueue: source, dead box, redrive, routes, capacity, alerts, redaction."""

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
    """Topic or stream that the courier consumes."""

    name: Annotated[BoxName, Field(description="Name of the topic or stream.")]
    group: Annotated[
        str,
        BoundedText(
            200,
            r"[A-Za-z0-9._:/-]+",
            "must be the name of a consumer group: letters, digits, '.', '_', '-', ':' and '/'",
        ),
        Field(description="Consumer group of the courier. Nothing else may use it."),
    ]
    start_from: Literal["Latest", "Earliest"] = Field(
        "Latest",
        description="Where a new group starts. A group that had started and has lost its offsets does not start again: "
        "it waits for the annotation deadletter.dev/resume-from.",
    )


class DeadBox(Model):
    """Topic or stream that stores the dead letters."""

    constraints: ClassVar = (
        immutable("name", ANOTHER_QUEUE),
        immutable("adopt", ANOTHER_QUEUE),
        CelRule(
            "!self.adopt || has(self.name)",
            "adopt requires name: set it to the existing topic or stream",
            lambda dead: not dead.adopt or dead.name,
            "name",
        ),
        CelRule(
            "!self.adopt || !(has(self.partitions) || has(self.replicationFactor) || "
            "(has(self.config) && self.config.size() > 0))",
            "adopt does not configure the box: remove partitions, replicationFactor and config",
            lambda dead: not dead.adopt or not (dead.partitions or dead.replication_factor or dead.config),
            "adopt",
        ),
        CelRule(
            "!has(self.partitions) || !has(oldSelf.partitions) || self.partitions >= oldSelf.partitions",
            "partitions must not decrease: letters would be lost",
            field="partitions",
        ),
        positive_duration("retention", "retention"),
        config_rule("config"),
    )

    name: BoxName | None = Field(
        None,
        description="Name of the topic or stream. If unset, <source>.<group>.dlq, on Redis {<source>}.<group>.dlq. "
        "Required without source.",
    )
    adopt: Bool = Field(
        False, description="True if the box exists already. The operator then never creates, configures or deletes it."
    )
    dialect: Annotated[str, BoundedText(64, "|".join(DIALECTS), f"must be one of {', '.join(DIALECTS)}")] = Field(
        "Auto", description="Dialect in which letters describe their failure. Auto detects it for each letter."
    )
    read_values: Bool = Field(
        False, description="Also detect dialects in the key and value of a message, not only in its headers."
    )
    origin: BoxName | None = Field(
        None, description="Topic that letters came from, if their dialect does not name it. None if unset."
    )
    partitions: Int | None = Field(
        None,
        ge=1,
        le=10000,
        description="Partitions of the dead box. May increase, never decrease. If unset, the default of the "
        "BrokerConnection.",
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
        description="Systems whose headers the courier also writes, so that their tools understand the letters. "
        "None if unset.",
    )

    @property
    def retention_ms(self) -> int:
        """Retention in milliseconds."""
        return durations.parse(self.retention)


class Redrive(Model):
    """Whether and which letters are sent back automatically."""

    constraints: ClassVar = (
        CelRule(
            "(self.strategy == 'Selective') == has(self.where)",
            "where must be set if and only if strategy is Selective",
            lambda redrive: (redrive.strategy == "Selective") == (redrive.where is not None),
            "where",
        ),
    )

    strategy: Literal["Manual", "Automatic", "Selective", "Disabled"] = Field(
        "Manual",
        description="Manual: only a Replay sends letters back. Automatic: letters are sent to their origin after the "
        "policy's backoff. Selective: only letters that match `where` are. Disabled: the adopted queue is only "
        "observed.",
    )
    where: Expression | None = Field(
        None, description="CEL expression over a letter. Required with strategy Selective."
    )


class Route(Model):
    """Route letters with a certain failure to another queue."""

    match: Annotated[
        ShortExpression, Field(description="CEL expression over a letter. If it is true, the letter takes this route.")
    ]
    queue_ref: NameRef = Field(description="Queue whose dead box receives the letters.")


class Capacity(Model):
    """Maximum number of open letters, and what happens when it is reached."""

    max_letters: Int = Field(
        ge=1, le=1_000_000_000_000, description="Maximum number of open letters; onFull says what happens then."
    )
    on_full: Literal["Pause", "Alert"] = Field(
        "Pause",
        description="Pause: stop delivering and redriving until there is room. Alert: only report it in the "
        "condition Degraded.",
    )


class Alerts(Model):
    """Thresholds for the condition Degraded; the alerts of the chart use them, too."""

    constraints: ClassVar = (positive_duration("age", "age"),)

    depth: Int | None = Field(
        None,
        ge=1,
        le=1_000_000_000_000,
        description="Maximum number of open letters before the queue is Degraded. No limit if unset.",
    )
    age: Duration | None = Field(
        None, description="Maximum age of an open letter before the queue is Degraded. No limit if unset."
    )

    @property
    def age_ms(self) -> int | None:
        """Maximum age in milliseconds."""
        return None if self.age is None else durations.parse(self.age)


class Redaction(Model):
    """Parts of a message that are hidden when letters are listed."""

    headers: tuple[HeaderName, ...] = Field(
        (), max_length=64, description="Names of headers whose values are hidden. None if unset."
    )
    json_pointers: tuple[
        Annotated[str, BoundedText(256, r"(?:/(?:[ -.0-}]|~[01])*)+", "must be a JSON pointer such as /card/number")],
        ...,
    ] = Field(
        (), max_length=64, description="JSON pointers to the parts of a JSON value that are hidden. None if unset."
    )
