"""Parts of the spec of a Replay: selection, target, rate, canary, verify."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from deadletter.api.base import Bool, BoundedText, BoxName, Duration, Expression, Int, Model, NameRef, Time
from deadletter.api.cel_rules import CelRule
from deadletter.api.delivery import ServiceRef
from deadletter.core import durations, times

EntryId = Annotated[
    str, BoundedText(41, "[0-9]{1,20}-[0-9]{1,20}", "must be a letter id as `letters list` prints it, such as 0-1234")
]


CONDITIONS = ("where", "ids", "fingerprint", "since", "until", "limit")


def has_condition(select: "LetterSelector") -> bool:
    """True if a field that selects some of the letters is set."""
    return any(getattr(select, name) is not None for name in CONDITIONS)


def _in_order(select: "LetterSelector") -> bool:
    if select.since is None or select.until is None:
        return True
    return times.parse(select.since) <= times.parse(select.until)


class LetterSelector(Model):
    """Conditions on letters; all that are set must hold. Every open letter if none is set."""

    constraints: ClassVar = (
        CelRule(
            "!has(self.since) || !has(self.until) || timestamp(self.since) <= timestamp(self.until)",
            "since must not be later than until",
            _in_order,
            "until",
        ),
        CelRule(
            f"!has(self.all) || !self.all || !({' || '.join(f'has(self.{name})' for name in CONDITIONS)})",
            "all: true selects every letter: remove it or the other conditions",
            lambda select: not select.all or not has_condition(select),
            "all",
        ),
    )

    where: Expression | None = Field(None, description="CEL expression over a letter. No condition if unset.")
    ids: tuple[EntryId, ...] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Ids of the letters: partition-offset, or the entry id on Redis. Any letter if unset.",
    )
    fingerprint: (
        Annotated[str, BoundedText(8, "[0-9a-f]{8}", "must be a fingerprint from the queue's status")] | None
    ) = Field(
        None, description="Letters that failed for this cause, from status.groups of the queue. Any cause if unset."
    )
    since: Time | None = Field(None, description="Letters that failed at this time or later. No lower bound if unset.")
    until: Time | None = Field(None, description="Letters that failed before this time. No upper bound if unset.")
    limit: Int | None = Field(
        None, ge=1, le=1_000_000_000_000, description="Maximum number of letters. No limit if unset."
    )
    all: Bool | None = Field(None, description="Set true to select every letter, without another condition.")
    state: Literal["Open", "Archived"] = Field(
        "Open", description="Open: letters in the queue. Archived: letters that a Replay has archived."
    )

    @property
    def since_ms(self) -> int | None:
        """Start time in milliseconds since the epoch."""
        return None if self.since is None else times.parse(self.since)

    @property
    def until_ms(self) -> int | None:
        """End time in milliseconds since the epoch."""
        return None if self.until is None else times.parse(self.until)


def _one_target(to: "ReplayDestination") -> bool:
    return [to.origin, to.name is not None, to.service_ref is not None, to.queue_ref is not None].count(True) == 1


class ReplayDestination(Model):
    """Target of the letters; exactly one field must be set."""

    constraints: ClassVar = (
        CelRule(
            "[has(self.origin) && self.origin, has(self.name), has(self.serviceRef), has(self.queueRef)]"
            ".exists_one(set, set)",
            "exactly one of origin: true, name, serviceRef and queueRef must be set",
            _one_target,
        ),
    )

    origin: Bool = Field(
        False, description="Send each letter to its origin, where every consumer group of that topic receives it again."
    )
    name: BoxName | None = Field(None, description="Topic or stream on the same broker.")
    service_ref: ServiceRef | None = Field(None, description="Service to deliver to directly, at least once.")
    queue_ref: NameRef | None = Field(
        None, description="Queue whose source receives the letters; it may be on another broker."
    )


class Rate(Model):
    """Rate limits; may be changed while the Replay runs."""

    per_second: Int | None = Field(
        None, ge=1, le=10_000_000, description="Maximum letters per second. Unlimited if unset."
    )
    max_in_flight: Int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Maximum number of letters that are sent and not confirmed yet. The worker's own limit if unset.",
    )


class Canary(Model):
    """Send letters in growing steps, and stop if too many fail again."""

    constraints: ClassVar = (
        CelRule(
            "self.steps.isSorted()",
            "steps must not decrease: each is the total number of letters sent before a wait",
            lambda canary: list(canary.steps) == sorted(canary.steps),
            "steps",
        ),
    )

    steps: tuple[Annotated[Int, Field(ge=1, le=1_000_000_000_000)], ...] = Field(
        min_length=1, max_length=16, description="Total number of letters sent before each wait, such as 1, 10, 100."
    )
    wait: Duration = Field("30s", description="How long to wait for letters that fail again after each step.")
    max_failure_share: Int = Field(
        10,
        ge=0,
        le=100,
        description="Maximum percentage of sent letters that may fail again; above it the Replay stops as failed.",
    )

    @property
    def wait_ms(self) -> int:
        """Wait in milliseconds."""
        return durations.parse(self.wait)


class Verify(Model):
    """Watch for letters that fail again before the Replay succeeds."""

    window: Duration = Field("5m", description="How long to watch after the last letter was sent.")
    max_failure_share: Int = Field(
        5,
        ge=0,
        le=100,
        description="Maximum percentage of sent letters that may fail again; above it the Replay fails.",
    )

    @property
    def window_ms(self) -> int:
        """Window in milliseconds."""
        return durations.parse(self.window)
