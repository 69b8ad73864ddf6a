"""Tests of the decision on a failed message."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core.cel import PredicateError
from deadletter.core.letters import Category
from deadletter.core.policy import (
    DEFAULT_POLICY,
    Backoff,
    Bury,
    Discard,
    Policy,
    PolicyRule,
    Retry,
    RetryAfter,
    decide,
    retry_schedule,
)
from tests.core.letters import NOW, letter

BACKOFFS = st.builds(
    Backoff,
    strategy=st.sampled_from(["Immediate", "Fixed", "Linear", "Exponential", "Schedule"]),
    initial=st.integers(0, 10**7),
    factor=st.floats(1, 999),
    max=st.integers(10**7, 10**9),
    jitter=st.integers(0, 10**6),
    schedule=st.lists(st.integers(0, 10**9), max_size=5).map(lambda waits: tuple(sorted(waits))),
)


@given(BACKOFFS, st.integers(1, 2_000))
def test_waits_never_shrink_and_never_exceed_the_maximum(backoff, failures):
    wait, longer = backoff.delay_ms(failures), backoff.delay_ms(failures + 1)
    assert 0 <= wait <= longer
    assert backoff.strategy == "Schedule" or longer <= backoff.max


@given(BACKOFFS, st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_bound(backoff, random):
    assert 0 <= backoff.jitter_ms(random) <= backoff.jitter


@given(BACKOFFS, st.integers(0, 10_000), st.floats(0, 1, exclude_max=True), st.integers(0, 10**7))
def test_a_retry_is_never_in_the_past(backoff, attempts, random, requested):
    verdict = decide(letter(attempts), Policy(max_attempts=20_000, backoff=backoff), NOW, random, requested)
    assert isinstance(verdict, Retry)
    assert verdict.at >= NOW


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff("Fixed", 500), [500] * 4),
        (Backoff("Linear", 500, max=1_200), [500, 1_000, 1_200, 1_200]),
        (Backoff("Exponential", 500, 3.0), [500, 1_500, 4_500, 13_500]),
        (Backoff("Exponential", 100, 1.5, 1_000), [100, 150, 225, 337]),
        (Backoff("Schedule", schedule=(1_000, 10_000)), [1_000, 10_000, 10_000, 10_000]),
        (Backoff("Schedule"), [0] * 4),
        (Backoff("Immediate"), [0] * 4),
        (Backoff("Never"), []),
    ],
)
def test_waits_of_each_strategy(backoff, waits):
    assert retry_schedule(Policy(backoff=backoff), 4) == waits


def test_an_overflowing_exponent_gives_the_maximum():
    assert Backoff().delay_ms(10**6) == 30_000


@pytest.mark.parametrize(
    ("requested", "verdict"),
    [
        ("retry", Retry(NOW + 1_000)),
        ("bury", Bury("ServiceAsked")),
        ("discard", Discard("ServiceAsked")),
        ("BURY", Bury("ServiceAsked")),
        ("nonsense", Bury("Refused")),
        (None, Bury("Refused")),
    ],
)
def test_the_service_may_request_an_action(requested, verdict):
    assert decide(letter(1, 400), DEFAULT_POLICY, NOW, 0.0, requested_action=requested) == verdict


def test_a_requested_retry_does_not_add_attempts():
    assert decide(letter(5, 400), DEFAULT_POLICY, NOW, 0.0, requested_action="retry") == Bury("AttemptsExhausted")


@pytest.mark.parametrize(
    ("retry_after", "settings", "wait"),
    [
        (10_000, RetryAfter(), 10_000),
        (600_000, RetryAfter(), 300_000),
        (600_000, RetryAfter(max=20_000), 20_000),
        (600_000, RetryAfter(honour=False), 5_000),
        (1_000, RetryAfter(), 5_000),
        (None, RetryAfter(), 5_000),
    ],
)
def test_retry_after_is_honoured_up_to_its_maximum(retry_after, settings, wait):
    verdict = decide(letter(1, 429), Policy(retry_after=settings), NOW, 0.0, retry_after)
    assert verdict == Retry(NOW + wait)


def test_the_first_rule_that_matches_decides():
    policy = Policy(
        rules=(
            PolicyRule("payload.nothing.here == 1", "broken", action="Discard"),
            PolicyRule(
                "error.status == 429", "rate", Category.Resource, "Retry", 10, Backoff("Linear", 300_000, max=3_600_000)
            ),
            PolicyRule("error.status == 429", "never reached", action="Bury"),
            PolicyRule("true", "rest", action="Discard"),
        )
    )
    assert decide(letter(3, 429), policy, NOW, 0.0) == Retry(NOW + 900_000)
    assert decide(letter(10, 429), policy, NOW, 0.0) == Bury("AttemptsExhausted")
    assert decide(letter(1, 500), policy, NOW, 0.0) == Discard("RuleMatched")


def test_rules_override_the_service_and_the_category():
    policy = Policy(rules=(PolicyRule("error.status == 400", action="Retry"),))
    assert decide(letter(1, 400), policy, NOW, 0.0, requested_action="discard") == Retry(NOW + 1_000)


def test_a_rule_that_renames_the_category_uses_its_default_backoff():
    policy = Policy(rules=(PolicyRule("true", category=Category.Resource),))
    assert decide(letter(2, 503), policy, NOW, 0.0) == Retry(NOW + 10_000)


def test_resource_failures_follow_a_policy_that_is_not_exponential():
    assert decide(letter(2, 429), Policy(backoff=Backoff("Fixed", 700)), NOW, 0.0) == Retry(NOW + 700)


@pytest.mark.parametrize(
    ("failed", "policy", "reason"),
    [
        (letter(5), Policy(), "AttemptsExhausted"),
        (letter(1), Policy(backoff=Backoff("Never")), "AttemptsExhausted"),
        (letter(1, 400), Policy(), "Refused"),
        (letter(1, first_failed_at=0), Policy(max_age=1_000), "Expired"),
        (letter(1, 400, first_failed_at=0), Policy(max_age=1_000), "Expired"),
    ],
)
def test_on_exhausted_holds_for_every_message_that_the_policy_gives_up(failed, policy, reason):
    assert decide(failed, policy, NOW, 0.0) == Bury(reason)
    assert decide(failed, replace(policy, on_exhausted="Discard"), NOW, 0.0) == Discard(reason)


def test_rules_and_services_that_ask_for_a_burial_get_it_under_discard():
    policy = Policy(on_exhausted="Discard", rules=(PolicyRule("error.status == 410", action="Bury"),))
    assert decide(letter(1, 410), policy, NOW, 0.0) == Bury("RuleMatched")
    assert decide(letter(1, 400), policy, NOW, 0.0, requested_action="bury") == Bury("ServiceAsked")


def test_retry_forever_ends_only_by_age():
    policy = Policy(max_age=1_000, rules=(PolicyRule("true", action="RetryForever"),))
    assert decide(letter(900), policy, NOW, 0.0) == Retry(NOW + 30_000)
    assert decide(letter(900, first_failed_at=0), policy, NOW, 0.0) == Bury("Expired")


def test_a_letter_without_a_first_failure_is_not_expired():
    assert decide(letter(1, first_failed_at=None), Policy(max_age=1), NOW, 0.0) == Retry(NOW + 1_000)


def test_a_rule_with_invalid_cel_is_rejected():
    with pytest.raises(PredicateError):
        PolicyRule("error.status ==")
