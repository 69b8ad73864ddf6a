"""Which messages are retried, parked, buried or discarded after a failed delivery."""

from collections import defaultdict

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from deadletter.core.headers import REPLAY, REPLAYS, add_replay_headers
from tests.workers.couriers import QUICK, MemoryQueue, buried_with, courier_assignment, message
from tests.workers.http_service import Received, serving, status, until


async def test_failures_of_a_flaky_service_are_retried():
    seen: dict[str, int] = defaultdict(int)

    def flaky(one: Received) -> web.Response:
        seen[one.id] += 1
        return web.Response(status=200 if seen[one.id] == 3 else 503)

    queue = MemoryQueue()
    queue.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
    async with serving(flaky) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    assert set(seen.values()) == {3}
    assert sorted({one.headers["Dlq-Attempt"] for one in service.received}) == ["1", "2", "3"]
    assert not queue.buried()


async def test_a_message_is_buried_when_its_attempts_are_exhausted():
    queue = await buried_with(status(503), {**QUICK, "maxAttempts": 3})
    (envelope,) = queue.envelopes()
    assert envelope.reason == "AttemptsExhausted"
    assert envelope.attempts == 3
    assert (envelope.failure.type, envelope.failure.status, envelope.failure.message) == ("Http503", 503, "no")
    assert (envelope.origin.topic, envelope.origin.partition, envelope.origin.offset) == ("orders", 0, 0)
    assert envelope.group == "billing"
    assert envelope.id == "orders/0/0"


async def test_a_buried_letter_has_the_time_of_its_failure():
    queue = await buried_with(status(422))
    (letter,), (envelope,) = queue.buried(), queue.envelopes()
    assert letter.timestamp == envelope.failed_at
    assert envelope.origin.timestamp == message().timestamp < letter.timestamp


@pytest.mark.parametrize("code", [301, 302, 307, 400, 401, 404, 422])
async def test_permanent_failures_are_buried_at_once(code: int):
    queue = await buried_with(status(code, Location="http://127.0.0.1:1/"))
    (envelope,) = queue.envelopes()
    assert (envelope.attempts, envelope.failure.status, envelope.reason) == (1, code, "Refused")


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503])
async def test_transient_failures_are_retried(code: int):
    policy = {**QUICK, "maxAttempts": 2}
    (envelope,) = (await buried_with(status(code), policy)).envelopes()
    assert envelope.attempts == 2


async def test_the_service_can_request_an_action():
    (envelope,) = (await buried_with(status(200, Dlq_Action="bury", Dlq_Error_Type="BadOrder"))).envelopes()
    assert (envelope.reason, envelope.failure.type, envelope.attempts) == ("ServiceAsked", "BadOrder", 1)
    assert not (await buried_with(status(500, Dlq_Action="discard"))).buried()
    answers = iter((web.Response(status=400, headers={"Dlq-Action": "retry"}), web.Response()))
    assert not (await buried_with(lambda _: next(answers))).buried()


async def test_rules_override_the_status():
    rules = [{"name": "teapot", "match": "error.status == 418", "action": "Discard"}]
    assert not (await buried_with(status(418), {**QUICK, "rules": rules})).buried()


async def test_a_long_retry_after_parks_the_letter_and_releases_its_key():
    queue = MemoryQueue()
    queue.send(message("first", "k"), message("second", "k"))

    def answer(one: Received) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "120"}) if one.body == b"first" else web.Response()

    async with serving(answer) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: len(queue.parked) == 1 and b"second" in service.bodies)
        (waiting,) = queue.server.boxes["retry"].waiting.values()
        assert waiting.due_at - queue.server.clock() > 60_000
    assert not queue.buried()


async def test_a_parked_letter_keeps_its_id_attempts_and_origin():
    policy = {
        "maxAttempts": 3,
        "backoff": {"strategy": "Fixed", "initial": "100ms"},
        "circuitBreaker": {"enabled": False},
    }
    queue = MemoryQueue()
    queue.send(message())
    async with (
        serving(status(503)) as service,
        queue.courier(courier_assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})),
    ):
        await until(lambda: queue.is_settled)
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3"]
    assert {one.id for one in service.received} == {"orders/0/0"}
    assert {one.headers["Dlq-Topic"] for one in service.received} == {"orders"}
    (envelope,) = queue.envelopes()
    assert (envelope.attempts, envelope.origin.topic, envelope.due_at) == (3, "orders", None)


async def test_a_replayed_letter_has_no_attempts_and_keeps_its_replay():
    queue = MemoryQueue()
    sent = add_replay_headers(message(), "name", "replay-uid", 1)
    queue.server.boxes["retry"].park(sent, 0)
    async with serving(status(503)) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3", "4", "5"]
    assert len({one.id for one in service.received}) == 1
    (letter,) = queue.buried()
    assert dict(letter.headers)[REPLAY] == b"replay-uid"
    assert dict(letter.headers)[REPLAYS] == b"1"


async def test_the_retry_due_last_is_parked_when_half_of_the_slots_wait():
    policy = {"backoff": {"strategy": "Fixed", "initial": "20s"}, "circuitBreaker": {"enabled": False}}
    queue = MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(12)))
    async with (
        serving(status(503)) as service,
        queue.courier(courier_assignment(service.url, policy=policy, delivery={"concurrency": 4})),
    ):
        await until(lambda: len(queue.parked) == 10)
    assert not queue.buried()


async def test_discarded_messages_leave_no_letter():
    policy = {**QUICK, "maxAttempts": 2, "onExhausted": "Discard"}
    queue = await buried_with(status(500), policy)
    assert not queue.buried()


async def test_refused_and_expired_messages_are_discarded_too():
    assert not (await buried_with(status(422), {**QUICK, "onExhausted": "Discard"})).buried()
    late = {"maxAge": "50ms", "backoff": {"strategy": "Fixed", "initial": "200ms"}, "maxAttempts": 100}
    assert not (await buried_with(status(503), {**late, "onExhausted": "Discard"})).buried()


async def test_a_burial_that_the_service_requests_is_not_a_discard():
    queue = await buried_with(status(500, Dlq_Action="bury"), {**QUICK, "onExhausted": "Discard"})
    (envelope,) = queue.envelopes()
    assert envelope.reason == "ServiceAsked"


async def test_burials_and_parkings_are_logged_without_content():
    def answer(one: Received) -> web.Response:
        headers = {"Retry-After": "120"} if one.body == b"later" else {}
        return web.Response(status=429 if headers else 422, headers=headers)

    queue = MemoryQueue()
    queue.send(message("secret-value", "secret-key"), message("later", "other"))
    with capture_logs() as logs:
        async with serving(answer) as service, queue.courier(courier_assignment(service.url)):
            await until(lambda: len(queue.parked) == 1 and len(queue.buried()) == 1)
            await until(lambda: len([one for one in logs if one["event"].startswith("message ")]) == 2)
    lines = {one["event"]: one for one in logs}
    buried, parked = lines["message buried"], lines["message parked"]
    assert (buried["id"], buried["attempts"], buried["error_type"]) == ("orders/0/0", 1, "Http422")
    assert (buried["reason"], parked["reason"], parked["id"]) == ("Refused", "RetryLater", "orders/0/1")
    assert "secret" not in str(logs)


async def test_a_message_above_the_maximum_age_is_buried_as_expired():
    policy = {"maxAge": "50ms", "backoff": {"strategy": "Fixed", "initial": "200ms"}, "maxAttempts": 100}
    (envelope,) = (await buried_with(status(503), policy)).envelopes()
    assert envelope.reason == "Expired"
