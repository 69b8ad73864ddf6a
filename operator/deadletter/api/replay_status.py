"""Status of a Replay, with exact counts from the ledger."""

from pydantic import Field

from deadletter.api.base import StatusModel
from deadletter.api.custom_resource import Status
from deadletter.api.queue_status import DATE_TIME, CauseStatus


class WindowStatus(StatusModel):
    """Frozen window of one partition."""

    partition: int = Field(description="Partition of the dead box.", ge=0)
    start: int = Field(description="First offset of the window.", ge=0)
    end: int = Field(description="Offset after the last one of the window.", ge=0)


class TargetStatus(StatusModel):
    """A target and the number of its letters."""

    name: str = Field(description="Topic or stream, or `service`.", max_length=253)
    letters: int = Field(description="Number of letters sent there, or of a DryRun, that would be sent there.", ge=0)


class ReplayStatus(Status):
    """Observed state of a Replay."""

    start_time: str | None = Field(None, description="When the Replay started.", json_schema_extra=DATE_TIME)
    completion_time: str | None = Field(None, description="When the Replay ended.", json_schema_extra=DATE_TIME)
    window: tuple[WindowStatus, ...] = Field(
        (), max_length=10000, description="Frozen window of the dead box, one entry per partition."
    )
    matched: int | None = Field(None, description="Number of letters that match the selection.", ge=0)
    replayed: int | None = Field(None, description="Number of letters sent.", ge=0)
    archived: int | None = Field(None, description="Number of letters archived.", ge=0)
    discarded: int | None = Field(None, description="Number of letters discarded.", ge=0)
    skipped: int | None = Field(
        None, description="Number of matching letters that were not processed; see skippedBy.", ge=0
    )
    failed_again: int | None = Field(None, description="Number of letters that were sent and failed again.", ge=0)
    remaining: int | None = Field(None, description="Number of letters in the window that are not processed yet.", ge=0)
    skipped_by: dict[str, int] = Field(
        default_factory=dict, max_length=16, description="Number of skipped letters by reason."
    )
    groups: tuple[CauseStatus, ...] = Field(
        (), max_length=10, description="The ten most frequent causes of matching letters."
    )
    targets: tuple[TargetStatus, ...] = Field((), max_length=10, description="The ten targets with the most letters.")
    bytes: int | None = Field(
        None, description="Size of the matching letters in bytes: keys, values and headers.", ge=0
    )
    samples: tuple[str, ...] = Field((), max_length=10, description="Ids of some matching letters.")
    letters_per_second: int | None = Field(None, description="Average rate while the Replay is working.", ge=0)
    estimated_completion_time: str | None = Field(
        None, description="When the Replay will end at this rate.", json_schema_extra=DATE_TIME
    )
    estimated_duration: str | None = Field(
        None,
        max_length=28,
        description="Of a DryRun: estimated duration of the Apply, at the configured rate or else at the rate of "
        "the DryRun, "
        "including the waits of canary and verify.",
    )
