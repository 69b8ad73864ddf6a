"""RetryPolicy: how often, when and how long a failed message is retried."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from deadletter.api.base import Bool, BoundedText, Duration, Int, Model, ShortExpression
from deadletter.api.cel_rules import CelRule, positive_duration
from deadletter.api.custom_resource import AGE, CustomResource, PrinterColumn, Status, condition_column
from deadletter.core import durations, policy
from deadletter.core.letters import Category

Strategy = Literal["Never", "Immediate", "Fixed", "Linear", "Exponential", "Schedule"]
CategoryName = Literal["Transient", "Network", "Resource", "Permission", "Validation", "Permanent"]
Factor = Annotated[
    str,
    BoundedText(
        8,
        r"[1-9][0-9]{0,2}(?:\.[0-9]{1,3})?",
        'must be a decimal number in quotes from "1" to "999.999", such as "2.0"',
    ),
]


class BackoffSpec(Model):
    """How long to wait before the next attempt."""

    constraints: ClassVar = (
        CelRule(
            "duration(self.max) >= duration(self.initial)",
            "max (30s if unset) must not be shorter than initial",
            lambda backoff: durations.parse(backoff.max) >= durations.parse(backoff.initial),
            "max",
        ),
        CelRule(
            "(self.strategy == 'Schedule') == has(self.schedule)",
            "schedule must be set if and only if strategy is Schedule",
            lambda backoff: (backoff.strategy == "Schedule") == (backoff.schedule is not None),
            "schedule",
        ),
    )

    strategy: Strategy = Field(
        "Exponential",
        description="Never: no retry. Immediate: no wait. Fixed: always wait initial. Linear: initial times the "
        "number of "
        "attempts. Exponential: initial, multiplied by factor after each retry. Schedule: the waits in schedule.",
    )
    initial: Duration = Field("1s", description="First wait.")
    factor: Factor = Field("2.0", description="Factor by which Exponential waits grow, a decimal number in quotes.")
    max: Duration = Field("30s", description="Maximum wait, without jitter.")
    jitter: Duration = Field("0s", description="Maximum random time added to each wait.")
    schedule: tuple[Duration, ...] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Waits of strategy Schedule in order; the last one repeats. Required with Schedule.",
    )

    def to_backoff(self) -> policy.Backoff:
        """Return the backoff with durations in milliseconds."""
        return policy.Backoff(
            strategy=self.strategy,
            initial=durations.parse(self.initial),
            factor=float(self.factor),
            max=durations.parse(self.max),
            jitter=durations.parse(self.jitter),
            schedule=tuple(durations.parse(wait) for wait in self.schedule or ()),
        )


class RetryAfterSpec(Model):
    """Whether and how far a Retry-After header of the service is honoured."""

    honour: Bool = Field(
        True, description="Wait as long as the Retry-After header says if that is longer than the backoff."
    )
    max: Duration = Field("5m", description="Maximum wait due to a Retry-After header.")


class RuleSpec(Model):
    """What to do about failures that match a CEL expression."""

    name: Annotated[
        str,
        BoundedText(63, "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", "must be lower case letters, digits and '-'"),
        Field(description="Name of the rule, used in logs and metrics."),
    ]
    match: ShortExpression = Field(
        description="CEL expression over error, attempts, headers, key and origin. If it is true, the rule decides."
    )
    category: CategoryName | None = Field(
        None, description="Category of the failure. If unset, the failure keeps its own category."
    )
    action: Literal["Retry", "RetryForever", "Bury", "Discard"] = Field(
        "Retry",
        description="Retry: up to maxAttempts. RetryForever: without a limit on attempts. Bury: write it to the "
        "dead box at "
        "once. Discard: drop it, with a metric and a warning.",
    )
    max_attempts: Int | None = Field(
        None, ge=1, le=1000, description="Overrides maxAttempts of the policy. Not overridden if unset."
    )
    backoff: BackoffSpec | None = Field(
        None, description="Replaces the whole backoff of the policy. Not replaced if unset."
    )

    def to_rule(self) -> policy.PolicyRule:
        """Return the rule in the form that core evaluates."""
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
        "connection refused or lost, timeout, 502 to 504. Retries count. Any other response resets the count.",
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
        """Return the settings with durations in milliseconds."""
        share = policy.DEFAULT_POLICY.breaker.failure_share if self.failure_share is None else self.failure_share
        return policy.BreakerSettings(
            enabled=self.enabled,
            consecutive=self.consecutive,
            failure_share=share,
            window=self.window,
            open_for=durations.parse(self.open_for),
        )


class ErrorBudgetSpec(Model):
    """Pause the courier when too many letters are buried in a period."""

    constraints: ClassVar = (positive_duration("per", "per"),)

    letters: Int = Field(ge=1, le=1_000_000_000, description="Maximum number of buried letters in the period.")
    per: Duration = Field(
        description="Length of the moving period. The courier pauses while the budget of the period is spent."
    )


class RetryPolicySpec(Model):
    """Limits, waits and rules for retries."""

    constraints: ClassVar = (
        positive_duration("timeout", "timeout"),
        positive_duration("maxAge", "max_age"),
        CelRule(
            "!has(self.rules) || self.rules.all(a, self.rules.exists_one(b, b.name == a.name))",
            "rules must have unique names",
            lambda spec: len({rule.name for rule in spec.rules}) == len(spec.rules),
            "rules",
        ),
    )

    max_attempts: Int = Field(
        5, ge=1, le=1000, description="Maximum number of deliveries, including the first one. 1 disables retries."
    )
    max_age: Duration | None = Field(
        None,
        description="Maximum time since the first failure; older messages are not retried, see onExhausted. No limit "
        "if unset.",
    )
    timeout: Duration = Field(
        "30s", description="Maximum duration of one attempt. A timeout counts as a failed attempt."
    )
    backoff: BackoffSpec = Field(default_factory=BackoffSpec, description="How long to wait between attempts.")
    retry_after: RetryAfterSpec = Field(
        default_factory=RetryAfterSpec, description="Whether a Retry-After header of the service is honoured."
    )
    rules: tuple[RuleSpec, ...] = Field(
        (), max_length=32, description="Rules by failure. The first one that matches decides. None if unset."
    )
    circuit_breaker: CircuitBreakerSpec = Field(
        default_factory=CircuitBreakerSpec, description="Pauses delivery while the service is down. Enabled by default."
    )
    on_exhausted: Literal["Bury", "Discard"] = Field(
        "Bury",
        description="What to do with a message that the policy gives up: after its last attempt, above maxAge, or at "
        "once because its category is not retried. Bury: write it to the dead box. Discard: drop it, with a metric and "
        "a warning. A rule or a Dlq-Action header with Bury or Discard takes precedence. What the policy does not "
        "judge is buried: batches that cannot be decoded and errors of the courier itself.",
    )
    error_budget: ErrorBudgetSpec | None = Field(
        None, description="Pauses the courier when too many letters are buried in a period. No budget if unset."
    )

    def to_policy(self) -> policy.Policy:
        """Return the policy with durations in milliseconds; PredicateError if a rule's match is not valid CEL."""
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
    """Status of a RetryPolicy."""

    queues: int | None = Field(None, description="Number of queues that use this policy.", ge=0)


class RetryPolicy(CustomResource):
    """How often, when and how long a failed message is retried before it becomes a dead letter."""

    kind: ClassVar[str] = "RetryPolicy"
    plural: ClassVar[str] = "retrypolicies"
    singular: ClassVar[str] = "retrypolicy"
    short_names: ClassVar[tuple[str, ...]] = ("rtp",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Ready", "Ready"),
        PrinterColumn("Strategy", ".spec.backoff.strategy", description="Backoff strategy."),
        PrinterColumn("Attempts", ".spec.maxAttempts", "integer", description="Maximum number of deliveries."),
        PrinterColumn("Max-Age", ".spec.maxAge", description="Maximum time since the first failure."),
        PrinterColumn("Queues", ".status.queues", "integer", description="Number of queues that use it."),
        condition_column("Reason", "Ready", "reason"),
        AGE,
    )

    spec: RetryPolicySpec = Field(default_factory=RetryPolicySpec, description="Limits, waits and rules for retries.")
    status: RetryPolicyStatus = Field(
        default_factory=RetryPolicyStatus, description="Observed state, written by the operator."
    )
