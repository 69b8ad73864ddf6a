"""The status of a DeadLetterQueue: is it bad, since when, and why did the letters die."""

from typing import Any

from pydantic import Field

from deadletter.api.base import StatusModel
from deadletter.api.kinds import Status

DATE_TIME: dict[str, Any] = {"format": "date-time"}


class CauseStatus(StatusModel):
    """Letters that died of the same cause."""

    fingerprint: str = Field(description="Name of the cause; `select.fingerprint` of a Replay takes it.", max_length=64)
    error_type: str = Field("", description="Type of the error.", max_length=256)
    category: str = Field("", description="Category of the failure.", max_length=32)
    letters: int = Field(description="Letters of this cause.", ge=0)


class GroupStatus(CauseStatus):
    """Letters of one cause that are still open."""

    first_seen_time: str | None = Field(None, description="When the oldest of them died.", json_schema_extra=DATE_TIME)
    last_seen_time: str | None = Field(None, description="When the newest of them died.", json_schema_extra=DATE_TIME)


class BoxesStatus(StatusModel):
    """The names of the boxes."""

    source: str | None = Field(None, description="What the courier reads.", max_length=255)
    retry: str | None = Field(None, description="Where letters wait for their next attempt.", max_length=255)
    dead: str | None = Field(None, description="Where dead letters lie.", max_length=255)
    ledger: str | None = Field(None, description="Where settlements are kept.", max_length=255)


class OwnedBox(StatusModel):
    """A box that the operator may configure and, with deletionPolicy Delete, delete."""

    name: str = Field(description="Name of the topic or stream.", max_length=255)
    id: str = Field(
        "",
        description="Id that the broker gives the box: on Kafka the topic id, on Redis the value of its id key. Empty "
        "until the box exists, and where the broker gives none.",
        max_length=64,
    )
    found: bool = Field(
        False,
        description="The box existed before it was recorded: it was created by 0.2.0 or taken over. It is deleted only "
        "after a confirmation by the annotation deadletter.dev/confirm-delete.",
    )


class PolicyStatus(StatusModel):
    """The policy that is followed now."""

    name: str | None = Field(None, description="The RetryPolicy, or `default` for the built-in one.", max_length=253)
    hash: str | None = Field(None, description="Changes when the policy does.", max_length=64)


class ConsumerGroupStatus(StatusModel):
    """The consumer group that the courier has started."""

    name: str = Field(description="The consumer group.", max_length=200)
    source: str = Field(description="The topic or stream that it reads.", max_length=255)
    started_time: str = Field(description="When a courier was first seen at work.", json_schema_extra=DATE_TIME)


class DeadLetterQueueStatus(Status):
    """What lies there, how old, and why."""

    depth: int | None = Field(None, description="Open letters: dead and not yet dealt with.", ge=0)
    depth_is_upper_bound: bool | None = Field(None, description="On a compacted topic some of them may be gone.")
    oldest_letter_time: str | None = Field(
        None, description="When the oldest open letter died.", json_schema_extra=DATE_TIME
    )
    retention_loss_time: str | None = Field(
        None, description="When retention will eat the oldest open letter.", json_schema_extra=DATE_TIME
    )
    utilization: int | None = Field(None, description="Percent of capacity.maxLetters.", ge=0)
    groups: tuple[GroupStatus, ...] = Field((), max_length=10, description="The ten most frequent causes.")
    lost_parked_letters: int | None = Field(
        None, description="Letters that were deleted from the retry box before they were delivered, in all.", ge=0
    )
    lost_parked_letters_time: str | None = Field(
        None, description="When such a loss was last found.", json_schema_extra=DATE_TIME
    )
    boxes: BoxesStatus | None = Field(None, description="The names of its boxes.")
    owned_boxes: tuple[OwnedBox, ...] = Field(
        (),
        max_length=8,
        description="Boxes that the operator created or took over. No other box is configured or deleted.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    replicas: int | None = Field(None, description="Pods of the courier.", ge=0)
    ready_replicas: int | None = Field(None, description="Pods of the courier that are ready.", ge=0)
    selector: str | None = Field(None, description="Selects the courier's pods, for autoscalers.", max_length=1024)
    policy: PolicyStatus | None = Field(None, description="The policy that is followed now.")
    consumer_group: ConsumerGroupStatus | None = Field(
        None,
        description="The group that has started. If it has no offsets later, the courier stops with GroupOffsetsLost.",
    )
