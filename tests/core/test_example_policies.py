"""Tests that policies reproduce the retry behaviour of the systems that examples/ imitates."""

import pytest

from deadletter.core.circuit_breaker import CircuitBreaker, ErrorBudget, ServiceHealth
from deadletter.core.dialects.reader import read_envelope, restore_message
from deadletter.core.failure_categories import classify_error, failure_from_error
from deadletter.core.letters import Category, Message, Place
from deadletter.core.policy import (
    Backoff,
    BreakerSettings,
    BudgetSettings,
    Bury,
    Discard,
    Policy,
    PolicyRule,
    Retry,
    decide,
    retry_schedule,
)
from tests.core.fixtures.base import texts
from tests.core.fixtures.binary import proto
from tests.core.letters import NOW, letter

MINUTE = 60_000


class TestPipestream:
    """Three attempts, infrastructure failures only, the DlqMessage and its replay."""

    def test_three_attempts_with_exponential_backoff_then_the_dead_box(self):
        policy = Policy(max_attempts=3)
        verdicts = [decide(letter(attempts, "Timeout"), policy, NOW, 0.0) for attempts in (1, 2, 3)]
        assert verdicts == [Retry(NOW + 1_000), Retry(NOW + 2_000), Bury("AttemptsExhausted")]

    @pytest.mark.parametrize("kind", ["TIMEOUT", "CONNECTION_REFUSED"])
    def test_its_error_types_are_network_failures(self, kind):
        assert classify_error(kind) is Category.Network

    def test_replay_publishes_the_original_stream(self):
        value = proto(f1=b"stream", f2=b"TIMEOUT", f3=b"late", f6=b"node", f7=b"input")
        message = Message(b"doc", value)
        envelope = read_envelope(message, Place("dlq.prod.node", 0, 1), read_values=True)
        assert (envelope.origin.topic, envelope.failure.type) == ("input", "TIMEOUT")
        assert restore_message(message, envelope) == Message(b"doc", b"stream")


class TestMahavishnu:
    """Linear 5 min x n; exponential from 1 min capped at 60; immediate; never; six categories."""

    def test_linear_waits_five_minutes_more_each_time(self):
        policy = Policy(backoff=Backoff("Linear", 5 * MINUTE, max=10_000 * MINUTE))
        assert retry_schedule(policy, 6) == [5 * MINUTE * (retries + 1) for retries in range(6)]

    def test_exponential_is_capped_at_sixty_minutes(self):
        policy = Policy(backoff=Backoff("Exponential", MINUTE, 2.0, 60 * MINUTE))
        assert retry_schedule(policy, 9) == [min(2**retries, 60) * MINUTE for retries in range(9)]

    def test_immediate_does_not_wait_and_never_does_not_retry(self):
        assert decide(letter(1), Policy(backoff=Backoff("Immediate")), NOW, 0.9) == Retry(NOW)
        assert decide(letter(1), Policy(backoff=Backoff("Never")), NOW, 0.0) == Bury("AttemptsExhausted")

    @pytest.mark.parametrize(
        ("category", "verdict"),
        [
            (Category.Transient, Retry(NOW + 1_000)),
            (Category.Network, Retry(NOW + 1_000)),
            (Category.Resource, Retry(NOW + 5_000)),
            (Category.Permission, Bury("Refused")),
            (Category.Validation, Bury("Refused")),
            (Category.Permanent, Bury("Refused")),
        ],
    )
    def test_each_category_has_its_default(self, category, verdict):
        failed = letter(1)
        failed.envelope.failure.category = category
        assert decide(failed, Policy(), NOW, 0.0) == verdict

    def test_an_unknown_error_is_permanent(self):
        assert classify_error("com.acme.OddnessException") is Category.Permanent

    def test_three_retries_are_four_attempts(self):
        policy = Policy(max_attempts=4, backoff=Backoff("Exponential", MINUTE, 2.0, 60 * MINUTE))
        assert decide(letter(3), policy, NOW, 0.0) == Retry(NOW + 4 * MINUTE)
        assert decide(letter(4), policy, NOW, 0.0) == Bury("AttemptsExhausted")


class TestDesign002:
    """1000 ms exponential, capped at 30000, with 200 jitter; its headers; no dead box means discard."""

    POLICY = Policy(max_attempts=20, backoff=Backoff("Exponential", 1_000, 2.0, 30_000, 200))

    def test_the_schedule(self):
        assert retry_schedule(self.POLICY, 7) == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]

    @pytest.mark.parametrize(("random", "jitter"), [(0.0, 0), (0.5, 100), (0.9999999, 200)])
    def test_jitter_is_added_after_the_cap(self, random, jitter):
        assert decide(letter(1), self.POLICY, NOW, random) == Retry(NOW + 1_000 + jitter)
        assert decide(letter(12), self.POLICY, NOW, random) == Retry(NOW + 30_000 + jitter)

    def test_a_timeout_is_an_attempt(self):
        assert decide(letter(3, "Timeout"), Policy(max_attempts=3), NOW, 0.0) == Bury("AttemptsExhausted")

    def test_without_a_dead_box_the_message_is_dropped_and_counted(self):
        policy = Policy(max_attempts=3, on_exhausted="Discard")
        assert decide(letter(3), policy, NOW, 0.0) == Discard("AttemptsExhausted")

    def test_its_headers_are_read(self):
        headers = texts(x_error_reason="boom", x_retry_attempt=3, source_topic="t", partition=1, offset=2, epoch=4)
        envelope = read_envelope(Message(b"k", b"v", headers), Place("t.dlq", 0, 0))
        assert (envelope.dialect, envelope.attempts, envelope.failure.message) == ("retry-dlq-design", 3, "boom")
        assert (envelope.origin.topic, envelope.origin.partition, envelope.origin.offset) == ("t", 1, 2)
        assert restore_message(Message(b"k", b"v", headers), envelope) == Message(b"k", b"v", ())


class TestQuerator:
    """An expire deadline next to max attempts; whichever comes first."""

    POLICY = Policy(max_attempts=2, max_age=10 * MINUTE)

    def test_the_deadline_buries_whatever_the_attempts(self):
        late = letter(1, first_failed_at=NOW - 10 * MINUTE - 1)
        assert decide(late, self.POLICY, NOW, 0.0) == Bury("Expired")

    def test_attempts_bury_before_the_deadline(self):
        assert decide(letter(2), self.POLICY, NOW, 0.0) == Bury("AttemptsExhausted")

    def test_at_the_deadline_it_is_not_yet_older(self):
        assert decide(letter(1, first_failed_at=NOW - 10 * MINUTE), self.POLICY, NOW, 0.0) == Retry(NOW + 1_000)

    def test_both_at_once_is_expired(self):
        assert decide(letter(2, first_failed_at=0), self.POLICY, NOW, 0.0) == Bury("Expired")


class TestWeakincentives:
    """min(60 x n, 900) s; five deliveries; include and exclude lists; the error budget."""

    BACKOFF = Backoff("Linear", 60_000, max=900_000)
    INCLUDED = PolicyRule('error.type in ["ValidationError", "ContentPolicyViolation"]', "include", action="Bury")
    EXCLUDED = PolicyRule(
        'error.type in ["MailboxConnectionError", "RateLimitError", "TimeoutError"]', "exclude", action="RetryForever"
    )
    POLICY = Policy(max_attempts=5, backoff=BACKOFF, rules=(EXCLUDED, INCLUDED))

    def test_the_visibility_backoff(self):
        waits = retry_schedule(Policy(max_attempts=100, backoff=self.BACKOFF), 20)
        assert waits == [min(60 * count, 900) * 1_000 for count in range(1, 21)]

    def test_the_fifth_delivery_is_the_last(self):
        assert decide(letter(4, "ServerBusy"), self.POLICY, NOW, 0.0) == Retry(NOW + 240_000)
        assert decide(letter(5, "ServerBusy"), self.POLICY, NOW, 0.0) == Bury("AttemptsExhausted")

    def test_included_errors_are_buried_at_once(self):
        assert decide(letter(1, "ContentPolicyViolation"), self.POLICY, NOW, 0.0) == Bury("RuleMatched")

    def test_excluded_errors_are_never_buried(self):
        for attempts in (5, 6, 50, 5_000):
            assert decide(letter(attempts, "TimeoutError"), self.POLICY, NOW, 0.0) == Retry(
                NOW + min(60_000 * attempts, 900_000)
            )

    def test_exclude_comes_before_include(self):
        both = PolicyRule('error.type == "TimeoutError"', "include", action="Bury")
        policy = Policy(rules=(self.EXCLUDED, both))
        assert decide(letter(9, "TimeoutError"), policy, NOW, 0.0) == Retry(NOW + 30_000)

    def test_an_error_rate_over_the_budget_pauses_instead_of_draining(self):
        breaker = CircuitBreaker(BreakerSettings(failure_share=30, window=10))
        for count in range(10):
            breaker.record(ServiceHealth.Up if count >= 3 else ServiceHealth.Failed, count, NOW, is_first=True)
        assert breaker.state == "Open"
        assert not breaker.may_deliver()

    def test_a_budget_of_letters_is_spent_and_recovers(self):
        budget = ErrorBudget(BudgetSettings(letters=100, per=10 * MINUTE))
        for _ in range(99):
            budget.spend(NOW)
        assert not budget.is_spent(NOW)
        budget.spend(NOW)
        assert budget.is_spent(NOW)
        assert not budget.is_spent(NOW + 10 * MINUTE)

    @pytest.mark.parametrize(
        ("kind", "category"),
        [
            ("MailboxConnectionError", Category.Network),
            ("RateLimitError", Category.Resource),
            ("TimeoutError", Category.Network),
            ("ValidationError", Category.Validation),
            ("ContentPolicyViolation", Category.Validation),
            ("AuthenticationError", Category.Permission),
            ("QuotaExceededError", Category.Resource),
            ("SerializationError", Category.Validation),
        ],
    )
    def test_its_error_classes_are_classified(self, kind, category):
        assert failure_from_error(kind).category is category
