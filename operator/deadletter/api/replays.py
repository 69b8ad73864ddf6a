"""Replay: sends selected letters back, or archives or discards them."""

from typing import ClassVar, Literal

from pydantic import Field

from deadletter.api.base import Bool, Duration, Int, Model, NameRef
from deadletter.api.cel_rules import CelRule, immutable, positive_duration
from deadletter.api.custom_resource import AGE, CustomResource, PrinterColumn, condition_column
from deadletter.api.replay_spec import (
    CONDITIONS,
    Canary,
    LetterSelector,
    Rate,
    ReplayDestination,
    Verify,
    has_condition,
)
from deadletter.api.replay_status import ReplayStatus
from deadletter.api.transform import TransformSpec
from deadletter.core import durations

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
SELECTORS = (*CONDITIONS, "all")
HAS_SELECTION = " || ".join(f"has(self.select.{name})" for name in CONDITIONS)


def _preview_has_no_selection(spec: "ReplaySpec") -> bool:
    return spec.preview_ref is None or all(getattr(spec.select, name) is None for name in SELECTORS)


def _everything_is_confirmed(spec: "ReplaySpec") -> bool:
    is_selected = spec.preview_ref is not None or has_condition(spec.select) or spec.select.all is True
    return spec.action == "Republish" or spec.mode == "DryRun" or is_selected


def _only_republish_has_target(spec: "ReplaySpec") -> bool:
    return spec.action == "Republish" or not (spec.to or spec.transform or spec.canary or spec.verify)


class ReplaySpec(Model):
    """Desired state of a Replay; only suspend, rate and ttlSecondsAfterFinished may be changed."""

    constraints: ClassVar = (
        *(immutable(field, "create another Replay instead") for field in IMMUTABLE),
        CelRule(
            f"!has(self.previewRef) || !({HAS_SELECTION} || has(self.select.all))",
            "previewRef uses the selection of the preview: remove the conditions in select",
            _preview_has_no_selection,
            "previewRef",
        ),
        CelRule(
            "self.action == 'Republish' || !(has(self.to) || has(self.transform) || has(self.canary) || "
            "has(self.verify))",
            "to, transform, canary and verify require action Republish",
            _only_republish_has_target,
            "action",
        ),
        CelRule(
            "self.action != 'Archive' || self.select.state != 'Archived'",
            "action Archive requires select.state Open: archived letters cannot be archived again",
            lambda spec: spec.action != "Archive" or spec.select.state != "Archived",
            "action",
        ),
        CelRule(
            "self.action == 'Republish' || self.mode == 'DryRun' || has(self.previewRef) || "
            f"{HAS_SELECTION} || (has(self.select.all) && self.select.all)",
            "actions Archive and Discard require a condition in select, or select: {all: true} for every letter",
            _everything_is_confirmed,
            "select",
            is_for_new=True,
        ),
        positive_duration("activeDeadline", "active_deadline"),
    )

    queue_ref: NameRef = Field(description="Queue whose letters are replayed.")
    mode: Literal["Apply", "DryRun"] = Field(
        "Apply", description="Apply: process the letters. DryRun: only report what Apply would do."
    )
    action: Literal["Republish", "Archive", "Discard"] = Field(
        "Republish",
        description="Republish: send the letters to the target. Archive: set them aside; a later Replay can restore "
        "them. "
        "Discard: drop them; this is final.",
    )
    select: LetterSelector = Field(
        default_factory=LetterSelector,
        description="Which letters are replayed. All open letters if unset; a new Archive or Discard requires "
        "a condition, `all: true` or previewRef.",
    )
    preview_ref: NameRef | None = Field(
        None, description="Finished DryRun whose frozen window and selected letters are used. None if unset."
    )
    to: ReplayDestination | None = Field(
        None,
        description="Target of the letters. If unset, the queue's own retry box with delivery, so that only its "
        "consumer group "
        "receives them, and each letter's origin without delivery.",
    )
    timestamp: Literal["Now", "Original"] = Field(
        "Now", description="Timestamp of published messages: the current time, or that of the original message."
    )
    rate: Rate | None = Field(None, description="Rate limits. Unlimited if unset. May be changed.")
    parallelism: Int = Field(
        4, ge=1, le=64, description="Maximum number of partitions that the pod processes concurrently."
    )
    canary: Canary | None = Field(None, description="Send letters in growing steps. All at once if unset.")
    transform: TransformSpec | None = Field(None, description="Changes to the messages. None if unset.")
    max_replays: Int = Field(
        3, ge=1, le=1000, description="Letters that were already replayed this many times are skipped."
    )
    on_missing_origin: Literal["Skip", "Fail"] = Field(
        "Skip", description="What to do with a letter that does not name its origin: skip it, or fail the Replay."
    )
    on_too_large: Literal["Skip", "Fail"] = Field(
        "Skip", description="What to do with a letter that is too large for the target: skip it, or fail the Replay."
    )
    verify: Verify | None = Field(None, description="Watch for letters that fail again. Not watched if unset.")
    suspend: Bool = Field(False, description="Pause the Replay while it is true. May be changed.")
    active_deadline: Duration | None = Field(
        None,
        description="Maximum running time, after which the Replay fails. It starts again after a suspend. No limit "
        "if unset.",
    )
    ttl_seconds_after_finished: Int | None = Field(
        None,
        ge=0,
        le=2_147_483_647,
        description="Seconds after its end until the Replay is deleted. Kept if unset. May be changed. With GitOps, "
        "a deleted "
        "Replay is created again and runs again.",
    )

    @property
    def active_deadline_ms(self) -> int | None:
        """Deadline in milliseconds."""
        return None if self.active_deadline is None else durations.parse(self.active_deadline)


class Replay(CustomResource):
    """Sends selected dead letters back: previewed, rate-limited and exactly once."""

    kind: ClassVar[str] = "Replay"
    plural: ClassVar[str] = "replays"
    singular: ClassVar[str] = "replay"
    short_names: ClassVar[tuple[str, ...]] = ("rply",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Succeeded", "Succeeded"),
        condition_column("Reason", "Succeeded", "reason"),
        PrinterColumn("Action", ".spec.action", wide=True, description="Republish, Archive or Discard."),
        PrinterColumn("Queue", ".spec.queueRef.name", wide=True, description="Queue whose letters are replayed."),
        PrinterColumn("Mode", ".spec.mode", wide=True, description="Apply or DryRun."),
        PrinterColumn(
            "Matched", ".status.matched", "integer", description="Number of letters that match the selection."
        ),
        PrinterColumn("Replayed", ".status.replayed", "integer", description="Number of letters sent."),
        PrinterColumn(
            "Returned",
            ".status.failedAgain",
            "integer",
            wide=True,
            description="Number of letters that were sent and failed again.",
        ),
        AGE,
    )
    selectable: ClassVar[tuple[str, ...]] = (".spec.queueRef.name",)

    spec: ReplaySpec = Field(description="Desired state of the Replay.")
    status: ReplayStatus = Field(default_factory=ReplayStatus, description="Observed state, written by the operator.")
