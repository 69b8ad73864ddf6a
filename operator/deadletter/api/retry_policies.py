"""RetryPolicy: how often, how soon and how long a message is tried again."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from deadletter.api.base import Bool, BoundedText, Duration, Int, Model, ShortExpression
from deadletter.api.cel_rules import CelRule, positive_duration
from deadletter.api.kinds import AGE, CustomResource, PrinterColumn, Status, condition_column
from deadletter.core import durations, policy
from deadletter.core.letters import Category

Strategy = Literal["Never", "Immediate", "Fixed", "Linear", "Exponential", "Schedule"]
CategoryName = Literal["Transient", "Network", "Resource", "Permission", "Validation", "Permanent"]
Factor = Annotated[
    str,
    BoundedText(8, r"[1-9][0-9]{0,2}(?:\.[0-9]{1,3})?", 'must be a decimal text from "1" to "999.999", such as "2.0"'),
]


class BackoffSpec(Model):
    """How long to wait before the next attempt."""

    constraints: ClassVar = (
        CelRule(
            "duration(self.max) >= duration(self.initial)",
            "max (30s when not set) must not be shorter than initial",
            lambda backoff: durations.parse(backoff.max) >= durations.parse(backoff.initial),
            "max",
        ),
        CelRule(
            "(self.strategy == 'Schedule') == has(self.schedule)",
            "strategy Schedule needs schedule, and schedule needs strategy Schedule",
            lambda backoff: (backoff.strategy == "Schedule") == (backoff.schedule is not None),
            "schedule",
        ),
    )

    strategy: Strategy = Field(
        "Exponential",
        description="Never: bury at once. Immediate: no wait. Fixed: initial each time. Linear: initial times the "
        "attempts so far. Exponential: initial times factor for each attempt after the first. Schedule: the list.",
    )
    initial: Duration = Field("1s", description="The first wait.")
    factor: Factor = Field("2.0", description="By how much Exponential grows: a decimal number as text.")
    max: Duration = Field("30s", description="No wait is longer than this (jitter comes on top).")
    jitter: Duration = Field("0s", description="Spread: up to this much is added to each wait, at random.")
    schedule: tuple[Duration, ...] | None = Field(
        None, min_length=1, max_length=64, description="The waits one by one, with Schedule; the last repeats."
    )

    def to_backoff(self) -> policy.Backoff:
        """The same in milliseconds."""
        return policy.Backoff(
            strategy=self.strategy,
            initial=durations.parse(self.initial),
            factor=float(self.factor),
            max=durations.parse(self.max),
            jitter=durations.parse(self.jitter),
            schedule=tuple(durations.parse(wait) for wait in self.schedule or ()),
        )


class RetryAfterSpec(Model):
    """What a Retry-After of the service is worth."""

    honour: Bool = Field(True, description="Wait as long as the service asks, if that is longer than the backoff.")
    max: Duration = Field("5m", description="But never longer than this.")


class RuleSpec(Model):
    """What to do about one sort of failure."""

    name: Annotated[
        str,
        BoundedText(63, "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", "must be lower case letters, digits and '-'"),
        Field(description="What people call the rule; it stands in logs and metrics."),
    ]
    match: ShortExpression = Field(
        description="CEL over error, attempts, headers, key, origin; true: the rule decides."
    )
    category: CategoryName | None = Field(None, description="Call the failure this, whatever it was classified as.")
    action: Literal["Retry", "RetryForever", "Bury", "Discard"] = Field(
        "Retry",
        description="Retry by the numbers; RetryForever: attempts do not count; Bury at once; Discard: drop it, "
        "counted and warned.",
    )
    max_attempts: Int | None = Field(None, ge=1, le=1000, description="Instead of the policy's maxAttempts.")
    backoff: BackoffSpec | None = Field(None, description="Instead of the policy's backoff, as a whole.")

    def to_rule(self) -> policy.PolicyRule:
        """The same as core judges by."""
        return policy.PolicyRule(
            match=self.match,
            name=self.name,
            category=None if self.category is None else Category(self.category),
            action=self.action,
            max_attempts=self.max_attempts,
            backoff=None if self.backoff is None else self.backoff.to_backoff(),
        )


class CircuitBreakerSpec(Model):
    """Pause delivery while the service is down, instead of burying every message."""

    constraints: ClassVar = (positive_duration("openFor", "open_for"),)

    enabled: Bool = Field(True, description="Pause delivery while the service is down.")
    consecutive: Int = Field(
        5,
        ge=1,
        le=1000,
        description="The circuit opens when this many different messages in a row did not reach the service: "
        "connection refused or lost, timeout, 502 to 504. Retries count. Any other answer starts the count again.",
    )
    failure_share: Int | None = Field(
        None,
        ge=1,
        le=100,
        description="The circuit opens when this percentage of the last `window` first attempts failed. Retries do not "
        "count. 95 if unset.",
    )
    window: Int = Field(
        20,
        ge=1,
        le=10000,
        description="Number of first attempts that failureShare is taken of. The circuit also opens when the last "
        "`window` attempts, retries included, had no success.",
    )
    open_for: Duration = Field(
        "30s", description="How long the circuit stays open before up to five messages are sent as probes."
    )

    def to_settings(self) -> policy.BreakerSettings:
        """The same as core judges by, in milliseconds."""
        share = policy.DEFAULT_POLICY.breaker.failure_share if self.failure_share is None else self.failure_share
        return policy.BreakerSettings(
            enabled=self.enabled,
            consecutive=self.consecutive,
            failure_share=share,
            window=self.window,
            open_for=durations.parse(self.open_for),
        )


class ErrorBudgetSpec(Model):
    """More dead letters than this is not the messages' fault."""

    constraints: ClassVar = (positive_duration("per", "per"),)

    letters: Int = Field(ge=1, le=1_000_000_000, description="Dead letters at most...")
    per: Duration = Field(description="...in this time; when they are spent, the courier pauses and says so.")


class RetryPolicySpec(Model):
    """How often, how soon and how long."""

    constraints: ClassVar = (
        positive_duration("timeout", "timeout"),
        positive_duration("maxAge", "max_age"),
        CelRule(
            "!has(self.rules) || self.rules.all(a, self.rules.exists_one(b, b.name == a.name))",
            "rules must have names that differ",
            lambda spec: len({rule.name for rule in spec.rules}) == len(spec.rules),
            "rules",
        ),
    )

    max_attempts: Int = Field(
        5, ge=1, le=1000, description="Deliveries in all, the first one counted; 1 means never retry."
    )
    max_age: Duration | None = Field(
        None, description="Bury what first failed longer ago than this, whatever the attempts (reason Expired)."
    )
    timeout: Duration = Field("30s", description="How long one attempt may take; a timeout is an attempt.")
    backoff: BackoffSpec = Field(default_factory=BackoffSpec, description="How long to wait between attempts.")
    retry_after: RetryAfterSpec = Field(
        default_factory=RetryAfterSpec, description="Whether the service may say when to come again."
    )
    rules: tuple[RuleSpec, ...] = Field(
        (), max_length=32, description="Rules by failure; the first that matches decides."
    )
    circuit_breaker: CircuitBreakerSpec = Field(
        default_factory=CircuitBreakerSpec, description="Pause while the service is down; on by default."
    )
    on_exhausted: Literal["Bury", "Discard"] = Field(
        "Bury",
        description="What becomes of a message that used up its attempts. Discard drops it, counted and warned.",
    )
    error_budget: ErrorBudgetSpec | None = Field(
        None, description="Pause before more letters die than this. Absent: no budget."
    )

    def to_policy(self) -> policy.Policy:
        """The same as core judges by, in milliseconds; PredicateError when a rule's match is no CEL."""
        budget = self.error_budget
        return policy.Policy(
            max_attempts=self.max_attempts,
            max_age=None if self.max_age is None else durations.parse(self.max_age),
            timeout=durations.parse(self.timeout),
            backoff=self.backoff.to_backoff(),
            retry_after=policy.RetryAfter(self.retry_after.honour, durations.parse(self.retry_after.max)),
            rules=tuple(rule.to_rule() for rule in self.rules),
            breaker=self.circuit_breaker.to_settings(),
            on_exhausted=self.on_exhausted,
            budget=policy.BudgetSettings(budget.letters, durations.parse(budget.per)) if budget else None,
        )


class RetryPolicyStatus(Status):
    """Whether the policy can be followed."""

    queues: int | None = Field(None, description="Queues that follow this policy.", ge=0)


class RetryPolicy(CustomResource):
    """How often, how soon and how long a message is tried again before it becomes a dead letter."""

    kind: ClassVar[str] = "RetryPolicy"
    plural: ClassVar[str] = "retrypolicies"
    singular: ClassVar[str] = "retrypolicy"
    short_names: ClassVar[tuple[str, ...]] = ("rtp",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Ready", "Ready"),
        PrinterColumn("Strategy", ".spec.backoff.strategy", description="How waits grow."),
        PrinterColumn("Attempts", ".spec.maxAttempts", "integer", description="Deliveries in all."),
        PrinterColumn("Max-Age", ".spec.maxAge", description="How long a message is tried."),
        PrinterColumn("Queues", ".status.queues", "integer", description="Queues that follow it."),
        condition_column("Reason", "Ready", "reason", wide=True),
        AGE,
    )

    spec: RetryPolicySpec = Field(default_factory=RetryPolicySpec, description="How often, how soon and how long.")
    status: RetryPolicyStatus = Field(
        default_factory=RetryPolicyStatus, description="Whether it can be followed; written by the operator."
    )
