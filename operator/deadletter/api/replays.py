"""Replay: which letters go back, where to, how fast, and what became of them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from deadletter.api.base import Bool, BoundedText, BoxName, Duration, Expression, Int, Model, NameRef, Time
from deadletter.api.cel_rules import CelRule, immutable, positive_duration
from deadletter.api.delivery import ServiceRef
from deadletter.api.kinds import AGE, CustomResource, PrinterColumn, condition_column
from deadletter.api.replay_status import ReplayStatus
from deadletter.api.transform import TransformSpec
from deadletter.core import durations, times

__all__ = [
    "IMMUTABLE",
    "MUTABLE",
    "Canary",
    "LetterSelector",
    "NameRef",
    "Rate",
    "Replay",
    "ReplayDestination",
    "ReplaySpec",
    "ServiceRef",
    "TransformSpec",
    "Verify",
]

MUTABLE = ("suspend", "rate", "ttlSecondsAfterFinished")
IMMUTABLE = (
    "queueRef",
    "mode",
    "action",
    "select",
    "previewRef",
    "to",
    "timestamp",
    "parallelism",
    "canary",
    "transform",
    "maxReplays",
    "onMissingOrigin",
    "onTooLarge",
    "verify",
    "activeDeadline",
)
SELECTORS = ("where", "ids", "fingerprint", "since", "until", "limit")
EntryId = Annotated[
    str, BoundedText(41, "[0-9]{1,20}-[0-9]{1,20}", "must be an id as `letters list` shows it, such as 0-1234")
]


def _in_order(select: "LetterSelector") -> bool:
    if select.since is None or select.until is None:
        return True
    return times.parse(select.since) <= times.parse(select.until)


class LetterSelector(Model):
    """Which letters; all that is set must hold. Nothing set: every open letter."""

    constraints: ClassVar = (
        CelRule(
            "!has(self.since) || !has(self.until) || timestamp(self.since) <= timestamp(self.until)",
            "since must not be later than until",
            _in_order,
            "until",
        ),
    )

    where: Expression | None = Field(None, description="CEL over a letter.")
    ids: tuple[EntryId, ...] | None = Field(
        None, min_length=1, max_length=1000, description="These letters: partition-offset, or a Redis entry id."
    )
    fingerprint: (
        Annotated[str, BoundedText(8, "[0-9a-f]{8}", "must be a fingerprint as the queue's status shows it")] | None
    ) = Field(None, description="Letters that died of this cause; status.groups of the queue lists them.")
    since: Time | None = Field(None, description="Letters that died at this time or later.")
    until: Time | None = Field(None, description="Letters that died before this time.")
    limit: Int | None = Field(None, ge=1, le=1_000_000_000_000, description="At most so many letters.")
    state: Literal["Open", "Archived"] = Field("Open", description="Archived: bring back what was archived.")

    @property
    def since_ms(self) -> int | None:
        """The beginning in milliseconds since the epoch."""
        return None if self.since is None else times.parse(self.since)

    @property
    def until_ms(self) -> int | None:
        """The end in milliseconds since the epoch."""
        return None if self.until is None else times.parse(self.until)


def _one_target(to: "ReplayDestination") -> bool:
    return [to.origin, to.name is not None, to.service_ref is not None, to.queue_ref is not None].count(True) == 1


class ReplayDestination(Model):
    """Where the letters go: one of these."""

    constraints: ClassVar = (
        CelRule(
            "[has(self.origin) && self.origin, has(self.name), has(self.serviceRef), has(self.queueRef)]"
            ".exists_one(set, set)",
            "exactly one of origin: true, name, serviceRef and queueRef must be set",
            _one_target,
        ),
    )

    origin: Bool = Field(False, description="Each letter's origin; every group of that topic sees it again.")
    name: BoxName | None = Field(None, description="A topic or stream of the same broker.")
    service_ref: ServiceRef | None = Field(None, description="Straight to a Service, at least once.")
    queue_ref: NameRef | None = Field(None, description="The source of another queue, also on another broker.")


class Rate(Model):
    """How fast; may be changed while it runs."""

    per_second: Int | None = Field(
        None, ge=1, le=10_000_000, description="Letters a second. Absent: as fast as it goes."
    )
    max_in_flight: Int | None = Field(None, ge=1, le=100_000, description="Letters sent and not yet confirmed.")


class Canary(Model):
    """Send a few, wait, look, go on."""

    constraints: ClassVar = (
        CelRule(
            "self.steps.isSorted()",
            "steps must grow: each is the letters sent in all before a wait",
            lambda canary: list(canary.steps) == sorted(canary.steps),
            "steps",
        ),
    )

    steps: tuple[Annotated[Int, Field(ge=1, le=1_000_000_000_000)], ...] = Field(
        min_length=1, max_length=16, description="Letters sent in all before each wait, such as 1, 10, 100."
    )
    wait: Duration = Field("30s", description="How long to watch after each step.")
    max_failure_share: Int = Field(
        10, ge=0, le=100, description="Stop when more than this percent of what was sent fails again."
    )

    @property
    def wait_ms(self) -> int:
        """The wait in milliseconds."""
        return durations.parse(self.wait)


class Verify(Model):
    """Watch what comes back before calling it a success."""

    window: Duration = Field("5m", description="How long to watch after the last letter.")
    max_failure_share: Int = Field(
        5, ge=0, le=100, description="More than this percent failing again: the Replay has failed."
    )

    @property
    def window_ms(self) -> int:
        """The window in milliseconds."""
        return durations.parse(self.window)


def _preview_alone(spec: "ReplaySpec") -> bool:
    return spec.preview_ref is None or all(getattr(spec.select, name) is None for name in SELECTORS)


def _only_republish(spec: "ReplaySpec") -> bool:
    return spec.action == "Republish" or not (spec.to or spec.transform or spec.canary or spec.verify)


class ReplaySpec(Model):
    """Immutable but suspend, rate and ttlSecondsAfterFinished: another selection is another Replay."""

    constraints: ClassVar = (
        *(immutable(field, "create another Replay instead") for field in IMMUTABLE),
        CelRule(
            f"!has(self.previewRef) || !({' || '.join(f'has(self.select.{name})' for name in SELECTORS)})",
            "previewRef brings its own selection: remove what select names",
            _preview_alone,
            "previewRef",
        ),
        CelRule(
            "self.action == 'Republish' || !(has(self.to) || has(self.transform) || has(self.canary) || "
            "has(self.verify))",
            "to, transform, canary and verify need action Republish",
            _only_republish,
            "action",
        ),
        CelRule(
            "self.action != 'Archive' || self.select.state != 'Archived'",
            "action Archive takes open letters: these are archived already",
            lambda spec: spec.action != "Archive" or spec.select.state != "Archived",
            "action",
        ),
        positive_duration("activeDeadline", "active_deadline"),
    )

    queue_ref: NameRef = Field(description="The queue whose letters are replayed.")
    mode: Literal["Apply", "DryRun"] = Field("Apply", description="DryRun: publish nothing, tell what would happen.")
    action: Literal["Republish", "Archive", "Discard"] = Field(
        "Republish", description="Republish: send them back. Archive: lay them aside. Discard: settle them for ever."
    )
    select: LetterSelector = Field(default_factory=LetterSelector, description="Which letters.")
    preview_ref: NameRef | None = Field(
        None, description="A finished DryRun whose frozen window and selection are taken, exactly."
    )
    to: ReplayDestination | None = Field(
        None,
        description="Where they go. Absent: with delivery the queue's own retry box, so that only its group gets them; "
        "else each letter's origin.",
    )
    timestamp: Literal["Now", "Original"] = Field("Now", description="The timestamp of what is published.")
    rate: Rate | None = Field(None, description="How fast. Absent: as fast as it goes. May be changed.")
    parallelism: Int = Field(4, ge=1, le=64, description="Partitions worked on at once inside the one pod.")
    canary: Canary | None = Field(None, description="Send a few first. Absent: all at once.")
    transform: TransformSpec | None = Field(None, description="Mend the messages on the way.")
    max_replays: Int = Field(3, ge=1, le=1000, description="A letter that was replayed so often is skipped.")
    on_missing_origin: Literal["Skip", "Fail"] = Field("Skip", description="A letter that does not tell its origin.")
    on_too_large: Literal["Skip", "Fail"] = Field("Skip", description="A letter the target does not take.")
    verify: Verify | None = Field(None, description="Watch what comes back. Absent: do not.")
    suspend: Bool = Field(False, description="Stop until it is false again. May be changed.")
    active_deadline: Duration | None = Field(
        None, description="Fail after this time; after a suspend it begins anew. Absent: never."
    )
    ttl_seconds_after_finished: Int | None = Field(
        None,
        ge=0,
        le=2_147_483_647,
        description="Remove the Replay so long after its end. Absent: keep it. May be changed. With GitOps a removed "
        "Replay is made again and runs again.",
    )

    @property
    def active_deadline_ms(self) -> int | None:
        """The deadline in milliseconds."""
        return None if self.active_deadline is None else durations.parse(self.active_deadline)


class Replay(CustomResource):
    """Dead letters go back: selected, previewed, rate-limited, exactly once."""

    kind: ClassVar[str] = "Replay"
    plural: ClassVar[str] = "replays"
    singular: ClassVar[str] = "replay"
    short_names: ClassVar[tuple[str, ...]] = ("rply",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Succeeded", "Succeeded"),
        condition_column("Reason", "Succeeded", "reason"),
        PrinterColumn("Queue", ".spec.queueRef.name", wide=True, description="The queue."),
        PrinterColumn("Mode", ".spec.mode", wide=True, description="Apply or DryRun."),
        PrinterColumn("Matched", ".status.matched", "integer", description="Letters that the selection took."),
        PrinterColumn("Replayed", ".status.replayed", "integer", description="Letters sent."),
        PrinterColumn(
            "Failed-Again", ".status.failedAgain", "integer", wide=True, description="Letters that came back."
        ),
        AGE,
    )
    selectable: ClassVar[tuple[str, ...]] = (".spec.queueRef.name",)

    spec: ReplaySpec = Field(description="Which letters go where.")
    status: ReplayStatus = Field(
        default_factory=ReplayStatus, description="What became of them; written by the operator."
    )
