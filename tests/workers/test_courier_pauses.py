"""What pauses a courier: it reports the reason, buries nothing because of it, and resumes by itself."""

import asyncio

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from deadletter.brokers.errors import BoxRefused, NotAuthorised
from deadletter.brokers.memory.subscription import MemorySubscription
from tests.workers.couriers import QUICK, MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, serving, status, until

QUEUE = {"namespace": "test", "queue": "orders"}


def circuit() -> float | None:
    return REGISTRY.get_sample_value("dlq_circuit_open", QUEUE)


def paused(reason: str) -> float | None:
    return REGISTRY.get_sample_value("dlq_courier_paused", QUEUE | {"reason": reason})


async def test_an_outage_pauses_and_buries_nothing():
    policy = {"maxAttempts": 8, "backoff": {"strategy": "Immediate"}, "circuitBreaker": {"openFor": "300ms"}}
    is_down, taken = True, set()

    def answer(one: Received) -> web.Response:
        if is_down:
            one.hang_up()
        else:
            taken.add(one.id)
        return web.Response()

    queue = MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(100)))
    async with serving(answer) as service:
        assignment = courier_assignment(service.url, policy=policy, delivery={"concurrency": 2})
        async with queue.courier(assignment) as courier:
            await until(lambda: queue.pause_reasons == ["CircuitOpen"])
            for _ in range(3):  # a few probes
                before = courier.gate.breaker.open_until
                await until(lambda before=before: courier.gate.breaker.open_until > before)
            assert not queue.buried()
            assert (circuit(), paused("CircuitOpen")) == (1, 1)
            is_down = False
            await until(lambda: queue.is_settled)
            await until(lambda: queue.pause_reasons == [""])
            assert (circuit(), paused("CircuitOpen")) == (0, 0)
    assert len(taken) == 100
    assert not queue.buried()


async def test_the_operator_can_pause_and_resume():
    paused = "CapacityReached"
    queue = MemoryQueue()
    async with serving() as service, queue.courier(courier_assignment(service.url), paused=lambda: paused):
        await until(lambda: queue.pause_reasons == ["CapacityReached"])
        queue.send(message())
        await asyncio.sleep(0.5)
        assert not service.received
        paused = ""
        await until(lambda: queue.is_settled)
    assert len(service.received) == 1


async def test_a_spent_error_budget_pauses_until_its_window_has_passed():
    queue = MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(20)))
    policy = {**QUICK, "errorBudget": {"letters": 5, "per": "2s"}}
    async with serving(status(400)) as service, queue.courier(courier_assignment(service.url, policy=policy)):
        await until(lambda: queue.pause_reasons == ["ErrorBudgetSpent"])
        await until(lambda: queue.is_settled)
    assert len(queue.buried()) == 20


async def test_a_dead_box_that_refuses_pauses_and_loses_nothing():
    queue = MemoryQueue()
    queue.server.refuse["dead"] = BoxRefused("the disk is full")
    queue.send(message())
    async with serving(status(400)) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.pause_reasons == ["BoxRefused"])
        queue.send(message("later"))
        assert not queue.is_settled
        del queue.server.refuse["dead"]
        await until(lambda: queue.is_settled)
    assert [one.value for one in queue.buried()] == [b"body", b"later"]


async def test_a_blocked_partition_is_reported_while_the_others_are_delivered(monkeypatch):
    queue, gate = MemoryQueue(), ""
    monkeypatch.setattr(MemorySubscription, "blocked_by", NotAuthorised("no right to read"), raising=False)
    async with serving() as service, queue.courier(courier_assignment(service.url), paused=lambda: gate):
        await until(lambda: queue.pause_reasons == ["NotAuthorised"])
        assert paused("NotAuthorised") == 1
        queue.send(message())
        await until(lambda: queue.is_settled)
        gate = "Suspended"
        await until(lambda: queue.pause_reasons == ["Suspended"])
        gate = ""
        await until(lambda: queue.pause_reasons == ["NotAuthorised"])
        monkeypatch.setattr(MemorySubscription, "blocked_by", None)
        await until(lambda: queue.pause_reasons == [""])
        assert paused("NotAuthorised") == 0
    assert len(service.received) == 1


async def test_a_letter_too_large_for_its_box_is_held_and_reported():
    queue = MemoryQueue()
    queue.send(message("x" * 2000))
    queue.server.boxes["dead"].max_message_bytes = 1000
    async with serving(status(400)) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.pause_reasons == ["TooLarge"])
        assert not queue.is_settled
        queue.server.boxes["dead"].max_message_bytes = None
        await until(lambda: queue.is_settled)
    assert len(queue.buried()) == 1


OPENS_SOON = {"window": 4, "openFor": "50ms"}


async def test_bad_messages_at_the_start_are_buried_although_they_keep_the_circuit_open():
    policy = {**QUICK, "maxAttempts": 2, "circuitBreaker": OPENS_SOON}
    queue, good = MemoryQueue(), {f"good-{n}".encode() for n in range(10)}
    queue.send(*(message(f"poison-{n}", f"p{n}") for n in range(12)), *(message(one.decode(), "k") for one in good))
    opened = False

    def answer(one: Received) -> web.Response:
        nonlocal opened
        opened = opened or courier.gate.breaker.state != "Closed"
        return web.Response(status=500 if one.body.startswith(b"poison") else 200)

    async with serving(answer) as service:
        assignment = courier_assignment(service.url, policy=policy, delivery={"concurrency": 2})
        async with queue.courier(assignment) as courier:
            await until(lambda: queue.is_settled)
    assert opened
    assert {one.value for one in queue.buried()} == {f"poison-{n}".encode() for n in range(12)}
    assert {envelope.attempts for envelope in queue.envelopes()} == {2}
    assert good <= set(service.bodies)


@pytest.mark.parametrize("code", [429, 503])
async def test_probes_of_a_service_that_is_down_cost_no_attempt(code: int):
    policy = {**QUICK, "maxAttempts": 3, "circuitBreaker": OPENS_SOON}
    is_down, queue = True, MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(5)))

    def answer(_: Received) -> web.Response:
        return web.Response(status=code if is_down else 200)

    async with serving(answer) as service:
        assignment = courier_assignment(service.url, policy=policy, delivery={"concurrency": 2})
        async with queue.courier(assignment):
            await until(lambda: len(service.received) >= 20)  # more than all attempts of all messages
            assert len({one.id for one in service.received}) >= 4  # probes take one after the other
            is_down = False
            await until(lambda: queue.is_settled)
    assert not queue.buried()


async def test_a_message_that_breaks_the_connection_is_buried_after_the_service_answered_another():
    policy = {**QUICK, "maxAttempts": 3, "circuitBreaker": {"openFor": "100ms"}}
    queue = MemoryQueue()
    queue.send(message("poison", "p"))

    def answer(one: Received) -> web.Response:
        if one.body == b"poison":
            one.hang_up()
        return web.Response()

    async with serving(answer) as service, queue.courier(courier_assignment(service.url, policy=policy)):
        await until(lambda: len(service.received) >= 6)  # it may be an outage: it is tried again, and not buried
        assert not queue.buried()
        queue.send(message("good", "g"))
        await until(lambda: queue.is_settled)
    (envelope,) = queue.envelopes()
    assert (envelope.attempts, envelope.reason) == (3, "AttemptsExhausted")
    assert service.bodies[-1] == b"poison"  # once more after the answer


async def test_a_policy_of_one_attempt_buries_a_message_that_did_not_reach_the_service():
    queue = MemoryQueue()
    queue.send(message())
    policy = {**QUICK, "maxAttempts": 1, "circuitBreaker": {}}
    async with serving(status(503)) as service, queue.courier(courier_assignment(service.url, policy=policy)):
        await until(lambda: queue.is_settled)
    assert (len(queue.buried()), len(service.received)) == (1, 1)


async def test_fresh_messages_are_delivered_while_an_open_circuit_delays_retries():
    """This includes messages behind a retry of their key: none waits for the 30 s that the circuit is open."""
    policy = {"backoff": {"strategy": "Immediate"}, "maxAttempts": 40, "circuitBreaker": {"window": 8}}
    queue, opened = MemoryQueue(partitions=3), 0
    answer = lambda one: web.Response(status=200 if one.body.startswith(b"good") else 500)  # noqa: E731
    async with (
        serving(answer) as service,
        queue.courier(courier_assignment(service.url, policy=policy)) as courier,
    ):
        for n in range(4):
            queue.send(*(message(f"good-{n}-{some}", f"{n}-{some}") for some in range(4)))
            queue.send(*(message(f"bad-{n}-{some}", f"{n}-{some}") for some in range(2)))
            await until(lambda opened=opened: courier.gate.breaker.times_opened > opened)
            opened = courier.gate.breaker.times_opened
            queue.send(*(message(f"good-{n}-behind-{some}", f"{n}-{some}") for some in range(2)))
            await until(
                lambda n=n: {f"good-{n}-behind-{some}".encode() for some in range(2)} <= set(service.bodies), 25
            )
