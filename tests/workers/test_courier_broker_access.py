"""A courier that can neither claim nor settle: its liveness probe, and the end of its subscription."""

import asyncio

import pytest

from deadletter.brokers.errors import (
    AddressForbidden,
    BoxRefused,
    BrokerError,
    BrokerUnreachable,
    GroupOffsetsLost,
    NotAuthorised,
    TooLarge,
)
from deadletter.brokers.types import Claim, Delivered
from deadletter.core.circuit_breaker import ServiceHealth
from deadletter.core.letters import Place
from deadletter.core.policy import Policy
from deadletter.workers.courier import settle
from deadletter.workers.courier.broker_access import UNUSABLE_AFTER_S, BrokerAccess
from deadletter.workers.courier.gate import Gate
from deadletter.workers.courier.settle import PlannedSettlement, Settler
from tests.workers.couriers import message

LATER = UNUSABLE_AFTER_S + 1


def read_only() -> BrokerError:
    error = BoxRefused("this Redis is a read-only replica")
    error.is_connection_problem = True
    return error


@pytest.mark.parametrize("error", [read_only(), BrokerUnreachable("no answer")])
def test_only_connection_problems_that_last_make_a_courier_stuck(error: BrokerError) -> None:
    access = BrokerAccess(0)
    access.add_failure(error)
    assert access.stuck_reason(UNUSABLE_AFTER_S, False) == ""
    assert str(error) in access.stuck_reason(LATER, False)


@pytest.mark.parametrize("kind", [BoxRefused, TooLarge, NotAuthorised, GroupOffsetsLost, AddressForbidden])
def test_errors_that_wait_for_a_user_never_make_a_courier_stuck(kind: type[BrokerError]) -> None:
    access = BrokerAccess(0)
    access.add_failure(kind("refused"))
    assert access.stuck_reason(LATER, False) == ""


def test_an_error_that_waits_for_a_user_ends_a_connection_problem() -> None:
    access = BrokerAccess(0)
    access.add_failure(BrokerUnreachable("no answer"))
    access.add_failure(NotAuthorised("access denied"))
    assert access.stuck_reason(LATER, False) == ""


def test_a_success_between_two_probes_restarts_the_measurement() -> None:
    access = BrokerAccess(0)
    access.add_failure(read_only())
    access.add_success()
    access.add_failure(read_only())
    assert access.stuck_reason(LATER, False) == ""
    assert access.stuck_reason(2 * LATER, False)


def test_a_courier_that_pauses_on_purpose_is_not_stuck() -> None:
    access = BrokerAccess(0)
    access.add_failure(read_only())
    assert access.stuck_reason(LATER, True) == ""
    assert access.stuck_reason(LATER + UNUSABLE_AFTER_S, False) == ""


def test_a_gate_tells_a_pause_on_purpose_from_a_refused_settlement() -> None:
    paused = ""
    gate = Gate(Policy(), lambda: paused)
    assert not gate.is_idle_on_purpose(0)
    claim = Claim(Place("orders", 0, 0), message())
    gate.add_refusal(claim, "BoxRefused", "read-only")
    assert not gate.is_idle_on_purpose(0)
    paused = "Suspended"
    assert gate.is_idle_on_purpose(0)
    gate.clear_refusal(claim)
    paused = ""
    for number in range(100):
        gate.breaker.record(ServiceHealth.Down, number, number, is_first=True)
    assert not gate.breaker.may_deliver()
    assert gate.is_idle_on_purpose(100)


class _RefusingSubscription:
    def __init__(self, error: BrokerError) -> None:
        self._error = error
        self.refused = asyncio.Event()

    def holds(self, _: Claim) -> bool:
        return True

    async def settle(self, *_: object) -> None:
        self.refused.set()
        raise self._error


async def settle_with(error: BrokerError) -> bool:
    """Settle one claim against a broker that refuses it, and stop the courier after the first refusal."""
    subscription, stopping = _RefusingSubscription(error), asyncio.Event()
    settler = Settler(subscription, Gate(Policy()), BrokerAccess(0), stopping, ("test", "orders"))  # type: ignore[arg-type]
    settling = asyncio.ensure_future(
        settler.settle(Claim(Place("orders", 0, 0), message()), PlannedSettlement(Delivered()))
    )
    await subscription.refused.wait()
    stopping.set()
    return await settling


async def test_a_refusal_that_lasts_ends_the_subscription_only_if_another_connection_may_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "MAX_REFUSAL_S", -1.0)
    with pytest.raises(BoxRefused):
        await settle_with(read_only())
    assert not await settle_with(BoxRefused("out of memory"))
