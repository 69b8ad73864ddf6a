"""Decide by a RetryPolicy whether a failed message is retried, buried or discarded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deadletter.core.cel import Predicate
from deadletter.core.letters import Category, Letter
from deadletter.core.reasons import Reason

_NOT_RETRIED = frozenset({Category.Permission, Category.Validation, Category.Permanent})


@dataclass(slots=True, frozen=True)
class Retry:
    """Deliver the message again at `at` (milliseconds since the epoch)."""

    at: int


@dataclass(slots=True, frozen=True)
class Bury:
    """Write the message to the dead box, for this reason."""

    reason: str


@dataclass(slots=True, frozen=True)
class Discard:
    """Drop the message, with a metric and a warning, for this reason."""

    reason: str


Verdict = Retry | Bury | Discard


@dataclass(slots=True, frozen=True)
class Backoff:
    """How long to wait after each failure. Times are in milliseconds."""

    strategy: str = "Exponential"  # Never, Immediate, Fixed, Linear, Exponential, Schedule
    initial: int = 1_000
    factor: float = 2.0
    max: int = 30_000
    jitter: int = 0
    schedule: tuple[int, ...] = ()

    def delay_ms(self, failures: int) -> int | None:
        """Return the wait after this many failures, without jitter; None if there is no retry."""
        if self.strategy == "Never":
            return None
        if self.strategy == "Immediate":
            return 0
        if self.strategy == "Schedule":
            return self.schedule[min(failures, len(self.schedule)) - 1] if self.schedule else 0
        return min(self._growing_delay(failures), self.max)

    def _growing_delay(self, failures: int) -> int:
        if self.strategy == "Fixed":
            return self.initial
        if self.strategy == "Linear":
            return self.initial * failures
        try:
            return int(self.initial * self.factor ** (failures - 1))
        except OverflowError:
            return self.max

    def jitter_ms(self, random: float) -> int:
        """Return a jitter between 0 and `jitter`, both included, from a random number in [0, 1)."""
        return int(random * (self.jitter + 1))


@dataclass(slots=True, frozen=True)
class RetryAfter:
    """Whether a Retry-After header of the service is honoured, and up to which wait."""

    honour: bool = True
    max: int = 300_000


@dataclass(slots=True, frozen=True)
class PolicyRule:
    """One rule of a policy; the first whose `match` is true decides. PredicateError if `match` is not valid CEL."""

    match: str
    name: str = ""
    category: Category | None = None
    action: str = "Retry"  # Retry, RetryForever, Bury, Discard
    max_attempts: int | None = None
    backoff: Backoff | None = None
    predicate: Predicate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", Predicate.cached(self.match))


@dataclass(slots=True, frozen=True)
class BreakerSettings:
    """When the circuit opens, and for how long."""

    enabled: bool = True
    consecutive: int = 5
    failure_share: int = 95
    window: int = 20
    open_for: int = 30_000


@dataclass(slots=True, frozen=True)
class BudgetSettings:
    """Maximum number of dead letters in a period in milliseconds."""

    letters: int
    per: int


@dataclass(slots=True, frozen=True)
class Policy:
    """The limits and rules of a RetryPolicy, durations in milliseconds."""

    max_attempts: int = 5
    max_age: int | None = None
    timeout: int = 30_000
    backoff: Backoff = Backoff()
    retry_after: RetryAfter = RetryAfter()
    rules: tuple[PolicyRule, ...] = ()
    breaker: BreakerSettings = BreakerSettings()
    on_exhausted: str = "Bury"
    budget: BudgetSettings | None = None


DEFAULT_POLICY = Policy()
RESOURCE_BACKOFF = Backoff("Linear", 5_000, max=300_000)


def decide(
    letter: Letter,
    policy: Policy,
    now: int,
    random: float,
    retry_after: int | None = None,
    requested_action: str | None = None,
) -> Verdict:
    """Return the verdict on a letter that has just failed; `attempts` of its envelope includes that failure.

    A rule decides first, then the action that the service requested (retry, bury, discard), then age, category and
    attempts. `on_exhausted` applies to what age, category and attempts end; a rule or service names its own action.
    """
    rule = first_match(policy.rules, letter, now)
    action = rule.action if rule else (requested_action or "").capitalize()
    reason = Reason.RuleMatched if rule else Reason.ServiceAsked
    if action == "Bury":
        return Bury(reason)
    if action == "Discard":
        return Discard(reason)
    category = rule.category if rule and rule.category else letter.envelope.failure.category
    if is_expired(letter, policy, now):
        return _give_up(policy, Reason.Expired)
    if category in _NOT_RETRIED and not action.startswith("Retry"):
        return _give_up(policy, Reason.Refused)
    attempts = max(letter.envelope.attempts, 1)
    backoff = select_backoff(policy, rule, category)
    wait = backoff.delay_ms(attempts)
    limit = rule.max_attempts if rule and rule.max_attempts else policy.max_attempts
    if wait is None or (attempts >= limit and action != "RetryForever"):
        return _give_up(policy, Reason.AttemptsExhausted)
    if retry_after is not None and policy.retry_after.honour:
        wait = max(wait, min(retry_after, policy.retry_after.max))
    return Retry(now + wait + backoff.jitter_ms(random))


def _give_up(policy: Policy, reason: str) -> Bury | Discard:
    return Discard(reason) if policy.on_exhausted == "Discard" else Bury(reason)


def first_match(rules: Sequence[PolicyRule], letter: Letter, now: int) -> PolicyRule | None:
    """Return the first rule that matches; a rule that cannot be evaluated does not match."""
    for rule in rules:
        if rule.predicate.matches(letter, now):
            return rule
    return None


def is_expired(letter: Letter, policy: Policy, now: int) -> bool:
    """True if the first failure is longer ago than the policy's `max_age`."""
    first = letter.envelope.first_failed_at
    return policy.max_age is not None and first is not None and now - first > policy.max_age


def select_backoff(policy: Policy, rule: PolicyRule | None, category: Category) -> Backoff:
    """Return the backoff of the rule or policy; Resource failures wait linearly instead of exponentially."""
    if rule and rule.backoff:
        return rule.backoff
    if category is Category.Resource and policy.backoff.strategy == "Exponential":
        return RESOURCE_BACKOFF
    return policy.backoff


def retry_schedule(policy: Policy, attempts: int) -> list[int]:
    """Return the waits after failures 1 to `attempts`, without jitter; empty for a policy that never retries."""
    waits = (policy.backoff.delay_ms(failures) for failures in range(1, attempts + 1))
    return [wait for wait in waits if wait is not None]
