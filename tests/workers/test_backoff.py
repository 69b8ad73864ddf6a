"""Delays between retries and the budget that ends them."""

import asyncio

import pytest

from deadletter.brokers.errors import BoxRecreated, BrokerError, BrokerUnreachable, NotAuthorised
from deadletter.workers.backoff import MAX_OUTAGE_TRIES, MAX_TRIES, ExponentialDelay, RetryBudget, wait_for_event


def test_a_delay_doubles_up_to_its_maximum_and_starts_again() -> None:
    delay = ExponentialDelay(1.0, 5.0)
    assert [delay.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    delay.reset()
    assert delay.next() == 1.0


async def test_a_wait_ends_early_when_the_event_is_set() -> None:
    event = asyncio.Event()
    assert not await wait_for_event(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_for_event(event, 3600)


@pytest.mark.parametrize(
    ("error", "tries"), [(NotAuthorised("no right"), MAX_TRIES), (BrokerUnreachable("gone"), MAX_OUTAGE_TRIES)]
)
def test_a_budget_allows_more_tries_in_an_outage(error: BrokerError, tries: int) -> None:
    budget = RetryBudget()
    delays = [budget.delay_after(error) for _ in range(tries - 1)]
    assert delays[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(delays) <= 10.0
    with pytest.raises(type(error)):
        budget.delay_after(error)


def test_progress_restores_the_budget() -> None:
    budget, error = RetryBudget(), NotAuthorised("no right")
    for _ in range(MAX_TRIES * 3):
        assert budget.delay_after(error, has_progressed=True) == 1.0


def test_an_error_that_is_not_transient_is_raised_at_once() -> None:
    with pytest.raises(BoxRecreated):
        RetryBudget().delay_after(BoxRecreated("another topic"))
