"""Tests of the circuit breaker and the error budget with an explicit clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core.circuit_breaker import MAX_PROBES, CircuitBreaker, ErrorBudget, ServiceHealth
from deadletter.core.policy import BreakerSettings, BudgetSettings

Up, Failed, Down = ServiceHealth.Up, ServiceHealth.Failed, ServiceHealth.Down


def after(
    breaker: CircuitBreaker, *results: ServiceHealth, is_first: bool = True, now: int = 0, start: int = 0
) -> CircuitBreaker:
    """Record deliveries of different messages and return the breaker."""
    for number, health in enumerate(results, start):
        breaker.record(health, number, now, is_first=is_first)
    return breaker


def opened(**settings: int) -> CircuitBreaker:
    """Return a breaker that opened at 0, because messages did not reach the service."""
    breaker = after(CircuitBreaker(BreakerSettings(**settings)), *[Down] * 5)
    assert breaker.state == "Open"
    return breaker


def probed(breaker: CircuitBreaker, now: int, *, is_fresh: bool = True) -> int:
    """Return how many probes may be sent now."""
    count = 0
    while breaker.may_probe(now, is_fresh=is_fresh):
        count += 1
        assert count <= MAX_PROBES
    return count


def test_five_messages_in_a_row_that_do_not_reach_the_service_open_it():
    breaker = after(CircuitBreaker(BreakerSettings()), *[Down] * 4)
    assert (breaker.state, breaker.may_deliver(), breaker.may_probe(0, is_fresh=True)) == ("Closed", True, False)
    after(breaker, Down, is_first=False, start=4)
    assert (breaker.state, breaker.may_deliver(), breaker.open_until) == ("Open", False, 30_000)


def test_the_same_message_counts_once_however_often_it_does_not_reach_the_service():
    breaker = CircuitBreaker(BreakerSettings(window=100))
    for _ in range(10):
        breaker.record(Down, "one", 0, is_first=False)
    assert after(breaker, *[Down] * 3).state == "Closed"
    assert after(breaker, Down, start=3).state == "Open"


@pytest.mark.parametrize("health", [Up, Failed])
def test_any_response_of_the_service_starts_the_count_again(health: ServiceHealth):
    breaker = after(CircuitBreaker(BreakerSettings(window=100)), *[Down] * 4, health, *[Down] * 4)
    assert breaker.state == "Closed"


def test_the_share_counts_only_over_a_full_window():
    breaker = after(CircuitBreaker(BreakerSettings(window=4, failure_share=50)), Failed, Up, Up)
    assert breaker.state == "Closed"
    assert after(breaker, Failed).state == "Open"


def test_the_share_is_taken_of_the_last_window():
    breaker = after(CircuitBreaker(BreakerSettings(window=4, failure_share=75)), Failed, Failed, Up, Up, Failed, Failed)
    assert breaker.state == "Closed"
    assert after(breaker, Failed).state == "Open"


def test_retries_do_not_count_for_the_share():
    breaker = CircuitBreaker(BreakerSettings(window=4, failure_share=50))
    for _ in range(50):
        after(breaker, Up)
        after(breaker, *[Failed] * 3, is_first=False)
    assert breaker.state == "Closed"


@pytest.mark.parametrize("share", [50, 95, 100])
def test_a_window_without_any_success_opens_it(share: int):
    breaker = after(CircuitBreaker(BreakerSettings(failure_share=share)), Up)
    assert after(breaker, *[Failed] * 19, is_first=False).state == "Closed"
    assert after(breaker, Failed, is_first=False).state == "Open"


def test_up_to_five_probes_go_out_after_the_pause_and_one_success_closes_it():
    breaker = opened()
    assert probed(breaker, 29_999) == 0
    assert probed(breaker, 30_000, is_fresh=False) == MAX_PROBES
    assert (breaker.state, breaker.may_deliver()) == ("HalfOpen", False)
    for health in (Down, Failed, Up):
        assert not breaker.may_deliver()
        breaker.record_probe(health, 30_100, is_fresh=False)
        assert probed(breaker, 30_100) == 0
    assert (breaker.state, breaker.may_deliver(), breaker.open_until) == ("Closed", True, 0)
    breaker.record_probe(Down, 30_200, is_fresh=False)
    assert after(breaker, *[Down] * 4).state == "Closed"


@pytest.mark.parametrize("sent", [1, 3, MAX_PROBES])
def test_when_all_probes_failed_it_opens_again(sent: int):
    breaker = opened()
    assert all(breaker.may_probe(30_000, is_fresh=True) for _ in range(sent))
    for number in range(sent):
        assert breaker.state == "HalfOpen"
        breaker.record_probe(Failed, 31_000 + number, is_fresh=True)
        assert probed(breaker, 31_000) == 0  # no more of them once one has failed
    assert (breaker.state, breaker.open_until) == ("Open", 61_000 + sent - 1)


def test_lost_probes_are_sent_again_and_a_late_success_closes_it():
    breaker = opened()
    assert probed(breaker, 30_000) == MAX_PROBES
    assert probed(breaker, 60_000) == MAX_PROBES
    for _ in range(MAX_PROBES):
        breaker.record_probe(Down, 60_001, is_fresh=True)
    assert breaker.state == "Open"
    breaker.record_probe(Up, 60_002, is_fresh=True)
    assert breaker.state == "Closed"


def test_deliveries_in_flight_when_it_opens_do_not_count():
    breaker = after(opened(), Up, now=1)
    after(breaker, *[Down] * 10, now=20_000)
    assert (breaker.state, breaker.open_until) == ("Open", 30_000)


def opened_by_retries() -> CircuitBreaker:
    return after(CircuitBreaker(BreakerSettings()), *[Failed] * 20, is_first=False)


def test_if_only_retries_fail_a_fresh_message_is_a_probe_at_once():
    breaker = opened_by_retries()
    assert probed(breaker, 1, is_fresh=False) == 0
    assert probed(breaker, 1) == MAX_PROBES
    breaker.record_probe(Failed, 2, is_fresh=True)
    assert probed(breaker, 2) == 1
    breaker.record_probe(Up, 3, is_fresh=True)
    assert breaker.state == "Closed"


def test_if_only_retries_fail_a_success_in_flight_closes_it():
    assert after(opened_by_retries(), Failed, now=1).state == "Open"
    assert after(opened_by_retries(), Up, now=1).state == "Closed"


def test_as_many_fresh_messages_as_the_window_are_tried_before_the_pause_is_over():
    breaker, tried = opened_by_retries(), 0
    while breaker.may_probe(1, is_fresh=True):
        breaker.record_probe(Failed, 1, is_fresh=True)
        tried += 1
    assert (tried, breaker.state, breaker.open_until) == (20, "Open", 30_000)


def test_fresh_messages_wait_when_one_did_not_reach_the_service():
    breaker = opened_by_retries()
    assert breaker.may_probe(1, is_fresh=True)
    breaker.record_probe(Down, 1, is_fresh=True)
    assert not breaker.may_probe(1, is_fresh=True)


def test_probes_with_retries_do_not_block_fresh_probes():
    breaker = opened_by_retries()
    assert probed(breaker, 30_000, is_fresh=False) == MAX_PROBES
    for _ in range(MAX_PROBES):
        breaker.record_probe(Failed, 30_001, is_fresh=False)
    assert (breaker.state, probed(breaker, 30_002, is_fresh=False), probed(breaker, 30_002)) == ("Open", 0, MAX_PROBES)


def test_a_disabled_breaker_stays_closed():
    assert after(CircuitBreaker(BreakerSettings(enabled=False)), *[Down] * 100).state == "Closed"


deliveries = st.tuples(st.sampled_from(ServiceHealth), st.integers(0, 6), st.booleans())
settings = st.builds(
    BreakerSettings,
    consecutive=st.integers(1, 6),
    failure_share=st.integers(1, 100),
    window=st.integers(1, 8),
    open_for=st.integers(1, 50),
)


@given(settings, st.lists(deliveries))
def test_it_opens_exactly_when_one_of_the_three_rules_is_fulfilled(limits: BreakerSettings, seen: list):
    breaker = CircuitBreaker(limits)
    for count in range(1, len(seen) + 1):
        health, message, is_first = seen[count - 1]
        breaker.record(health, message, 0, is_first=is_first)
        past = seen[:count]
        assert (breaker.state == "Open") == _must_open(limits, past)
        if breaker.state == "Open":
            return


def _must_open(limits: BreakerSettings, past: list) -> bool:
    responded = [number for number, (health, _, _) in enumerate(past, 1) if health is not Down]
    unreached = {message for _, message, _ in past[max(responded, default=0) :]}
    firsts = [health is not Up for health, _, is_first in past if is_first][-limits.window :]
    last = [health for health, _, _ in past[-limits.window :]]
    is_share = len(firsts) == limits.window and sum(firsts) / limits.window * 100 >= limits.failure_share
    return len(unreached) >= limits.consecutive or is_share or (len(last) == limits.window and Up not in last)


@given(
    settings,
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.sampled_from([*ServiceHealth, None])), max_size=80),
)
def test_one_success_closes_it_and_otherwise_a_probe_is_always_possible_later(limits: BreakerSettings, steps: list):
    breaker = after(CircuitBreaker(limits), *[Down] * 8)
    now, pending = 0, 0
    for wait, is_fresh, health in steps:
        now += wait
        pending += breaker.may_probe(now, is_fresh=is_fresh)
        if health is not None and pending:
            pending -= 1
            breaker.record_probe(health, now, is_fresh=is_fresh)
            if health is Up:
                assert breaker.may_deliver()
                return
        assert not breaker.may_deliver()
    assert breaker.may_probe(now + limits.open_for, is_fresh=False)


def test_without_a_budget_nothing_is_ever_spent():
    budget = ErrorBudget(None)
    for _ in range(10):
        budget.spend(0)
    assert not budget.is_spent(0)


@pytest.mark.parametrize(
    ("letters", "burials", "now", "spent"),
    [
        (1, [], 0, False),
        (1, [0], 0, True),
        (1, [0], 99, True),
        (1, [0], 100, False),
        (3, [0, 0], 0, False),
        (3, [0, 0, 0], 0, True),
        (3, [0, 50, 90], 99, True),
        (3, [0, 50, 90], 100, False),
        (3, [0, 50, 90, 100], 149, True),
        (3, [0, 50, 90, 100], 150, False),
        (3, [0, 0, 0, 0, 0], 99, True),
        (3, [0, 0, 0, 0, 0], 100, False),
    ],
)
def test_a_budget_is_spent_while_the_window_holds_its_letters(letters, burials, now, spent):
    budget = ErrorBudget(BudgetSettings(letters, per=100))
    for moment in burials:
        budget.spend(moment)
    assert budget.is_spent(now) is spent


@pytest.mark.parametrize("letters", [1, 2, 3, 10])
def test_checking_before_each_burial_never_exceeds_the_budget(letters):
    budget, burials = ErrorBudget(BudgetSettings(letters, per=100)), []
    for now in range(1_000):
        while not budget.is_spent(now):
            budget.spend(now)
            burials.append(now)
    assert len(burials) == 10 * letters
    assert max(sum(start <= moment < start + 100 for moment in burials) for start in range(1_000)) == letters
