"""Status of a DeadLetterQueue: depth, age and causes of its letters, and its boxes."""

from typing import Any

from pydantic import Field

from deadletter.api.base import StatusModel
from deadletter.api.custom_resource import Status

DATE_TIME: dict[str, Any] = {"format": "date-time"}


class CauseStatus(StatusModel):
    """Letters that failed for the same cause."""

    fingerprint: str = Field(
        description="Fingerprint of the cause; use it in `select.fingerprint` of a Replay.", max_length=64
    )
    error_type: str = Field("", description="Error type of the failure.", max_length=256)
    category: str = Field("", description="Category of the failure.", max_length=32)
    letters: int = Field(description="Number of letters with this cause.", ge=0)


class GroupStatus(CauseStatus):
    """Open letters with the same cause."""

    first_seen_time: str | None = Field(
        None, description="When the oldest of them failed.", json_schema_extra=DATE_TIME
    )
    last_seen_time: str | None = Field(None, description="When the newest of them failed.", json_schema_extra=DATE_TIME)


class BoxesStatus(StatusModel):
    """Names of the boxes of a queue."""

    source: str | None = Field(None, description="Topic or stream that the courier consumes.", max_length=255)
    retry: str | None = Field(
        None, description="Topic, or sorted set on Redis, where letters wait for their next attempt.", max_length=255
    )
    dead: str | None = Field(None, description="Topic or stream that stores the dead letters.", max_length=255)
    ledger: str | None = Field(
        None, description="Topic, or hash on Redis, that records which letters are settled.", max_length=255
    )


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
    """The retry policy in use."""

    name: str | None = Field(
        None, description="Name of the RetryPolicy, or `default` for the built-in one.", max_length=253
    )
    hash: str | None = Field(None, description="Digest of the policy; it changes with the policy.", max_length=64)


class ConsumerGroupStatus(StatusModel):
    """The consumer group that the courier has started."""

    name: str = Field(description="Name of the consumer group.", max_length=200)
    source: str = Field(description="Topic or stream that it consumes.", max_length=255)
    started_time: str = Field(description="When a courier was first seen running.", json_schema_extra=DATE_TIME)


class DeadLetterQueueStatus(Status):
    """Observed state of a DeadLetterQueue."""

    depth: int | None = Field(
        None, description="Number of open letters, which are neither replayed, archived nor discarded.", ge=0
    )
    depth_is_upper_bound: bool | None = Field(
        None, description="True if depth may be too high, because compaction can remove letters of this topic."
    )
    oldest_letter_time: str | None = Field(
        None, description="When the oldest open letter failed.", json_schema_extra=DATE_TIME
    )
    retention_loss_time: str | None = Field(
        None, description="When retention will delete the oldest open letter.", json_schema_extra=DATE_TIME
    )
    utilization: int | None = Field(None, description="Open letters in percent of capacity.maxLetters.", ge=0)
    groups: tuple[GroupStatus, ...] = Field(
        (), max_length=10, description="The ten most frequent causes of open letters."
    )
    lost_parked_letters: int | None = Field(
        None,
        description="Total number of letters that were deleted from the retry box before they were delivered.",
        ge=0,
    )
    lost_parked_letters_time: str | None = Field(
        None, description="When such a loss was last detected.", json_schema_extra=DATE_TIME
    )
    boxes: BoxesStatus | None = Field(None, description="Names of the boxes of the queue.")
    owned_boxes: tuple[OwnedBox, ...] = Field(
        (),
        max_length=8,
        description="Boxes that the operator created or took over. No other box is configured or deleted.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    replicas: int | None = Field(None, description="Number of courier pods.", ge=0)
    ready_replicas: int | None = Field(None, description="Number of ready courier pods.", ge=0)
    selector: str | None = Field(
        None, description="Label selector of the courier pods, for autoscalers.", max_length=1024
    )
    policy: PolicyStatus | None = Field(None, description="The retry policy in use.")
    consumer_group: ConsumerGroupStatus | None = Field(
        None,
        description="Consumer group that has started. If it has lost its offsets, the courier stops with "
        "GroupOffsetsLost.",
    )
