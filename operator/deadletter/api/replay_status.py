"""The status of a Replay: exact counts from the ledger."""

from pydantic import Field

from deadletter.api.base import StatusModel
from deadletter.api.kinds import Status
from deadletter.api.queue_status import DATE_TIME, CauseStatus


class WindowStatus(StatusModel):
    """The frozen part of one partition."""

    partition: int = Field(description="Partition of the dead box.", ge=0)
    start: int = Field(description="First offset.", ge=0)
    end: int = Field(description="The offset after the last.", ge=0)


class TargetStatus(StatusModel):
    """One place letters go to."""

    name: str = Field(description="A topic or stream, or `service`.", max_length=253)
    letters: int = Field(description="Letters that went there; of a DryRun, that would.", ge=0)


class ReplayStatus(Status):
    """What became of the letters."""

    start_time: str | None = Field(None, description="When it began.", json_schema_extra=DATE_TIME)
    completion_time: str | None = Field(None, description="When it ended.", json_schema_extra=DATE_TIME)
    window: tuple[WindowStatus, ...] = Field((), max_length=10000, description="The frozen part of the dead box.")
    matched: int | None = Field(None, description="Letters that the selection took.", ge=0)
    replayed: int | None = Field(None, description="Letters sent.", ge=0)
    archived: int | None = Field(None, description="Letters archived.", ge=0)
    discarded: int | None = Field(None, description="Letters discarded.", ge=0)
    skipped: int | None = Field(None, description="Letters that matched and were not taken; see skippedBy.", ge=0)
    failed_again: int | None = Field(None, description="Letters that were sent and came back.", ge=0)
    remaining: int | None = Field(None, description="Letters of the window still to be looked at.", ge=0)
    skipped_by: dict[str, int] = Field(
        default_factory=dict, max_length=16, description="Why letters were skipped, counted."
    )
    groups: tuple[CauseStatus, ...] = Field(
        (), max_length=10, description="The ten most frequent causes of what matched."
    )
    targets: tuple[TargetStatus, ...] = Field(
        (), max_length=10, description="The ten places that most letters go to, or would go to."
    )
    bytes: int | None = Field(None, description="Size of what matched: keys, values and headers.", ge=0)
    samples: tuple[str, ...] = Field((), max_length=10, description="Ids of some that matched.")
    letters_per_second: int | None = Field(None, description="How fast it goes, on average while it works.", ge=0)
    estimated_completion_time: str | None = Field(
        None, description="When it will end at this pace.", json_schema_extra=DATE_TIME
    )
    estimated_duration: str | None = Field(
        None,
        max_length=28,
        description="Of a DryRun: how long sending them takes, at the rate asked for, else guessed by its own pace, "
        "with the waits of canary and verify.",
    )
