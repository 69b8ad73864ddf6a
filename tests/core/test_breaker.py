"""The circuit and the budget, walked with an explicit clock."""

import pytest

from deadletter.core.breaker import Breaker, ErrorBudget
from deadletter.core.policy import BreakerSettings, BudgetSettings


def _broken(breaker: Breaker, times: int = 5, now: int = 0) -> Breaker:
    for _ in range(times):
        breaker.record(ok=False, network=True, now=now)
    return breaker


def test_five_network_failures_in_a_row_open_it():
    breaker = _broken(Breaker(BreakerSettings()), 4)
    assert (breaker.state, breaker.may_deliver(0), breaker.may_probe(0)) == ("Closed", True, False)
    _broken(breaker, 1)
    assert (breaker.state, breaker.may_deliver(0), breaker.opens_until) == ("Open", False, 30_000)


@pytest.mark.parametrize(("ok", "network"), [(True, False), (False, False)])
def test_anything_between_starts_the_row_again(ok, network):
    breaker = _broken(Breaker(BreakerSettings(window=100)), 4)
    breaker.record(ok, network, 0)
    assert _broken(breaker, 4).state == "Closed"


def test_the_share_counts_only_over_a_full_window():
    breaker = Breaker(BreakerSettings(window=4))
    for ok in (False, True, True):
        breaker.record(ok, False, 0)
    assert breaker.state == "Closed"
    breaker.record(False, False, 0)
    assert breaker.state == "Open"


def test_one_probe_at_a_time_closes_it():
    breaker = _broken(Breaker(BreakerSettings()))
    assert not breaker.may_probe(29_999)
    assert breaker.may_probe(30_000)
    assert (breaker.state, breaker.may_probe(30_001), breaker.may_deliver(30_001)) == ("HalfOpen", False, False)
    breaker.record(True, False, 30_100)
    assert (breaker.state, breaker.may_deliver(30_100), breaker.opens_until) == ("Closed", True, 0)
    assert _broken(breaker, 4).state == "Closed"


def test_a_failed_probe_opens_it_again():
    breaker = _broken(Breaker(BreakerSettings()))
    assert breaker.may_probe(30_000)
    breaker.record(False, True, 31_000)
    assert (breaker.state, breaker.opens_until) == ("Open", 61_000)


def test_a_lost_probe_is_sent_again():
    breaker = _broken(Breaker(BreakerSettings()))
    assert breaker.may_probe(30_000)
    assert breaker.may_probe(60_000)


def test_what_was_under_way_when_it_opened_does_not_count():
    breaker = _broken(Breaker(BreakerSettings()))
    breaker.record(True, False, 1)
    _broken(breaker, 10, 20_000)
    assert (breaker.state, breaker.opens_until) == ("Open", 30_000)


def test_switched_off_it_stays_closed():
    assert _broken(Breaker(BreakerSettings(enabled=False)), 100).state == "Closed"


def test_without_a_budget_nothing_is_ever_spent():
    budget = ErrorBudget(None)
    for _ in range(10):
        budget.spend(0)
    assert not budget.is_spent(0)


@pytest.mark.parametrize(
    ("letters", "died", "now", "spent"),
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
def test_a_budget_is_spent_while_as_many_died_in_the_window_as_it_holds(letters, died, now, spent):
    budget = ErrorBudget(BudgetSettings(letters, per=100))
    for moment in died:
        budget.spend(moment)
    assert budget.is_spent(now) is spent


@pytest.mark.parametrize("letters", [1, 2, 3, 10])
def test_whoever_asks_first_never_exceeds_the_budget_in_any_window(letters):
    budget, died = ErrorBudget(BudgetSettings(letters, per=100)), []
    for now in range(1_000):
        while not budget.is_spent(now):
            budget.spend(now)
            died.append(now)
    assert len(died) == 10 * letters
    assert max(sum(start <= moment < start + 100 for moment in died) for start in range(1_000)) == letters
