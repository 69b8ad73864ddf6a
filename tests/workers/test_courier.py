"""The courier on the memory broker: deliveries, retries, burials, pauses."""

import asyncio
from base64 import b64decode
from collections import defaultdict
from dataclasses import replace

import pytest
from aiohttp import web

from deadletter.brokers.errors import BoxRefused
from deadletter.core.headers import REPLAY, REPLAYS, stamp_replay
from deadletter.core.letters import Message
from tests.workers.couriers import QUICK, Bench, assignment, message
from tests.workers.services import Received, serving, until


def status(code: int, **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, headers=named, text="no")


async def buried_with(answer, policy=None, **more) -> Bench:
    """One message to a service that answers like this, until it is settled."""
    bench = Bench()
    bench.send(message())
    async with serving(answer) as service:
        told = assignment(service.url, policy=policy or QUICK, **more)
        async with bench.courier(told):
            await until(lambda: bench.is_settled)
    return bench


async def test_every_message_is_delivered_once():
    bench = Bench(partitions=3)
    bench.send(*(message(f"m{n}", f"k{n % 7}") for n in range(300)))
    async with serving() as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    assert sorted(service.bodies) == sorted(f"m{n}".encode() for n in range(300))
    assert len({one.id for one in service.received}) == 300
    assert not bench.buried()


async def test_a_request_tells_where_its_message_came_from():
    bench = Bench()
    bench.send(message("hello", "key-1", ("traceparent", b"00-1-2-01"), ("x-team", b"pay"), ("secret", b"no")))
    async with serving() as service:
        http = {"forwardHeaders": ["x-*"], "headers": [{"name": "X-Fixed", "value": "yes"}]}
        async with bench.courier(assignment(service.url, http=http)):
            await until(lambda: bench.is_settled)
    headers = service.received[0].headers
    assert headers["Dlq-Topic"] == "orders"
    assert headers["Dlq-Partition"] == headers["Dlq-Offset"] == "0"
    assert headers["Dlq-Timestamp"] == "2023-11-14T22:13:20Z"
    assert headers["Dlq-Attempt"] == "1"
    assert headers["Dlq-Key"] == "key-1"
    assert headers["Idempotency-Key"] == "orders/0/0"
    assert headers["traceparent"] == "00-1-2-01"
    assert headers["x-team"] == "pay"
    assert headers["X-Fixed"] == "yes"
    assert headers["Content-Type"] == "application/octet-stream"
    assert "secret" not in headers
    assert service.bodies == [b"hello"]


async def test_a_cloud_event_goes_out_in_binary_mode():
    bench = Bench()
    event = (("ce_specversion", b"1.0"), ("ce_subject", "größe 1".encode()), ("content-type", b"application/json"))
    bench.send(message("{}", "k", *event))
    async with serving() as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    headers = service.received[0].headers
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-subject"] == "gr%C3%B6%C3%9Fe%201"
    assert headers["Content-Type"] == "application/json"


async def test_poison_inputs_arrive_whole_and_do_not_break_the_request():
    poison = (
        Message(None, None, (), 1),
        Message(b"\x00\xff\r\nX: y", b"", (("a\r\nb", b"x"), ("evil", b"1\r\nX-Injected: 1")), 2),
        Message(b"k" * 10_000, bytes(3 << 20), tuple((f"h{n}", b"\xff" * 50) for n in range(500)), 3),
        Message(b"k", b"v", (("content-length", b"999"), ("host", b"evil"), ("dlq-id", b"forged")), -1),
    )
    bench = Bench()
    bench.send(*poison)
    async with serving() as service, bench.courier(assignment(service.url, http={"forwardHeaders": ["*"]})):
        await until(lambda: bench.is_settled)
    seen = {one.headers["Dlq-Offset"]: one for one in service.received}
    assert [seen[str(n)].body for n in range(4)] == [one.value or b"" for one in poison]
    assert seen["0"].headers["Dlq-Null"] == "true"
    assert b64decode(seen["1"].headers["Dlq-Key"]) == poison[1].key
    assert all("X-Injected" not in one.headers for one in service.received)
    assert seen["2"].headers["Dlq-Key-Encoding"] == "omitted"
    assert seen["3"].headers["Idempotency-Key"] == "orders/0/3"


async def test_a_poison_message_is_buried_with_its_bytes_unchanged_and_forged_headers_moved():
    bench = Bench()
    poison = Message(b"\x00", b"\xff\xfe", (("dlq-attempts", b"99"), ("x", b"\x80"), (REPLAYS, b"2")), 5)
    bench.send(poison)
    async with serving(status(400)) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    (letter,) = bench.buried()
    assert (letter.key, letter.value) == (poison.key, poison.value)
    assert dict(letter.headers)["x-orig-dlq-attempts"] == b"99"
    assert dict(letter.headers)["x"] == b"\x80"
    (envelope,) = bench.envelopes()
    assert (envelope.attempts, envelope.replays, envelope.reason) == (1, 2, "Refused")


async def test_a_flaky_service_gets_its_retries():
    seen: dict[str, int] = defaultdict(int)

    def flaky(one: Received) -> web.Response:
        seen[one.id] += 1
        return web.Response(status=200 if seen[one.id] == 3 else 503)

    bench = Bench()
    bench.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
    async with serving(flaky) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    assert set(seen.values()) == {3}
    assert sorted({one.headers["Dlq-Attempt"] for one in service.received}) == ["1", "2", "3"]
    assert not bench.buried()


async def test_attempts_run_out_and_the_letter_says_why():
    bench = await buried_with(status(503), {**QUICK, "maxAttempts": 3})
    (envelope,) = bench.envelopes()
    assert envelope.reason == "AttemptsExhausted"
    assert envelope.attempts == 3
    assert (envelope.failure.type, envelope.failure.status, envelope.failure.message) == ("Http503", 503, "no")
    assert (envelope.origin.topic, envelope.origin.partition, envelope.origin.offset) == ("orders", 0, 0)
    assert envelope.group == "billing"
    assert envelope.id == "orders/0/0"


@pytest.mark.parametrize("code", [301, 302, 307, 400, 401, 404, 422])
async def test_what_time_does_not_heal_is_buried_at_once(code: int):
    bench = await buried_with(status(code, Location="http://127.0.0.1:1/"))
    (envelope,) = bench.envelopes()
    assert (envelope.attempts, envelope.failure.status, envelope.reason) == (1, code, "Refused")


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503])
async def test_what_time_may_heal_is_tried_again(code: int):
    policy = {**QUICK, "maxAttempts": 2}
    (envelope,) = (await buried_with(status(code), policy)).envelopes()
    assert envelope.attempts == 2


async def test_the_service_may_say_what_becomes_of_its_message():
    (envelope,) = (await buried_with(status(200, Dlq_Action="bury", Dlq_Error_Type="BadOrder"))).envelopes()
    assert (envelope.reason, envelope.failure.type, envelope.attempts) == ("ServiceAsked", "BadOrder", 1)
    assert not (await buried_with(status(500, Dlq_Action="discard"))).buried()
    answers = iter((web.Response(status=400, headers={"Dlq-Action": "retry"}), web.Response()))
    assert not (await buried_with(lambda _: next(answers))).buried()


async def test_rules_override_the_status():
    rules = [{"name": "teapot", "match": "error.status == 418", "action": "Discard"}]
    assert not (await buried_with(status(418), {**QUICK, "rules": rules})).buried()


async def test_a_long_retry_after_parks_the_letter_and_frees_its_key():
    bench = Bench()
    bench.send(message("first", "k"), message("second", "k"))

    def answer(one: Received) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "120"}) if one.body == b"first" else web.Response()

    async with serving(answer) as service, bench.courier(assignment(service.url)):
        await until(lambda: len(bench.parked) == 1 and b"second" in service.bodies)
        (waiting,) = bench.server.boxes["retry"].waiting.values()
        assert waiting.due_at - bench.server.clock() > 60_000
    assert not bench.buried()


async def test_a_parked_letter_keeps_its_name_attempts_and_origin():
    policy = {
        "maxAttempts": 3,
        "backoff": {"strategy": "Fixed", "initial": "100ms"},
        "circuitBreaker": {"enabled": False},
    }
    bench = Bench()
    bench.send(message())
    async with (
        serving(status(503)) as service,
        bench.courier(assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})),
    ):
        await until(lambda: bench.is_settled)
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3"]
    assert {one.id for one in service.received} == {"orders/0/0"}
    assert {one.headers["Dlq-Topic"] for one in service.received} == {"orders"}
    (envelope,) = bench.envelopes()
    assert (envelope.attempts, envelope.origin.topic, envelope.due_at) == (3, "orders", None)


async def test_a_replayed_letter_starts_again_at_no_attempts_and_keeps_its_replay():
    bench = Bench()
    sent = stamp_replay(message(), "replay-uid", 1)
    bench.server.boxes["retry"].park(sent, 0)
    async with serving(status(503)) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3", "4", "5"]
    assert len({one.id for one in service.received}) == 1
    (letter,) = bench.buried()
    assert dict(letter.headers)[REPLAY] == b"replay-uid"
    assert dict(letter.headers)[REPLAYS] == b"1"


async def test_a_route_takes_the_letters_that_match():
    bench = Bench()
    bench.send(message("bad", "a"), message("odd", "b"))

    def answer(one: Received) -> web.Response:
        return web.Response(status=422 if one.body == b"bad" else 410)

    routes = [{"match": 'error.category == "Validation"', "box": "other"}]
    async with serving(answer) as service, bench.courier(assignment(service.url, routes=routes)):
        await until(lambda: bench.is_settled)
    assert [one.value for one in bench.buried("other")] == [b"bad"]
    assert [one.value for one in bench.buried("dead")] == [b"odd"]


async def test_order_per_key_is_kept_through_inline_retries():
    failures: dict[bytes, int] = defaultdict(int)

    def flaky(one: Received) -> web.Response:
        failures[one.body] += 1
        return web.Response(status=503 if failures[one.body] < 3 and one.body.endswith(b"0") else 200)

    bench = Bench()
    bench.send(*(message(f"{n:03d}", f"k{n % 4}") for n in range(100)))
    async with serving(flaky) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    for key in range(4):
        ofkey = [one.body for one in service.received if one.headers["Dlq-Key"] == f"k{key}"]
        first = list(dict.fromkeys(ofkey))
        assert first == sorted(first)
        assert ofkey == sorted(ofkey)  # a retry comes before its successors


async def test_one_in_flight_per_key_and_many_without_order():
    together = {"Key": 0, "None": 0}
    for ordering in together:
        running = 0

        async def slow(_: Received, ordering: str = ordering) -> web.Response:
            nonlocal running
            running += 1
            together[ordering] = max(together[ordering], running)
            await asyncio.sleep(0.02)
            running -= 1
            return web.Response()

        bench = Bench()
        bench.send(*(message(f"{n}", "same") for n in range(12)))
        async with (
            serving(slow) as service,
            bench.courier(assignment(service.url, delivery={"ordering": ordering})),
        ):
            await until(lambda bench=bench: bench.is_settled)
    assert together["Key"] == 1
    assert together["None"] > 1


async def test_memory_is_bounded_while_a_service_hangs():
    gate = asyncio.Event()

    async def hanging(_: Received) -> web.Response:
        await gate.wait()
        return web.Response()

    bench = Bench()
    bench.send(*(message(f"{n}", f"k{n}") for n in range(500)))
    async with (
        serving(hanging) as service,
        bench.courier(assignment(service.url, delivery={"concurrency": 10})) as courier,
    ):
        await until(lambda: len(service.received) == 10)
        assert courier.load.held <= 20
        assert len(service.received) == 10
        gate.set()
        await until(lambda: bench.is_settled)
    assert len(service.received) == 500


async def test_when_half_of_the_slots_wait_the_longest_is_parked():
    policy = {"backoff": {"strategy": "Fixed", "initial": "20s"}, "circuitBreaker": {"enabled": False}}
    bench = Bench()
    bench.send(*(message(f"{n}", f"k{n}") for n in range(12)))
    async with (
        serving(status(503)) as service,
        bench.courier(assignment(service.url, policy=policy, delivery={"concurrency": 4})),
    ):
        await until(lambda: len(bench.parked) == 10)
    assert not bench.buried()


async def test_an_outage_pauses_and_buries_nothing():
    policy = {"maxAttempts": 8, "backoff": {"strategy": "Immediate"}, "circuitBreaker": {"openFor": "300ms"}}
    is_down, taken = True, set()

    def answer(one: Received) -> web.Response:
        if is_down:
            one.hang_up()
        else:
            taken.add(one.id)
        return web.Response()

    bench = Bench()
    bench.send(*(message(f"{n}", f"k{n}") for n in range(100)))
    async with serving(answer) as service:
        told = assignment(service.url, policy=policy, delivery={"concurrency": 2})
        async with bench.courier(told) as courier:
            await until(lambda: bench.words == ["CircuitOpen"])
            for _ in range(3):  # a few probes
                before = courier.gate.breaker.opens_until
                await until(lambda before=before: courier.gate.breaker.opens_until > before)
            assert not bench.buried()
            is_down = False
            await until(lambda: bench.is_settled)
            await until(lambda: bench.words == [""])
    assert len(taken) == 100
    assert not bench.buried()


async def test_the_gate_of_the_operator_pauses_and_opens_again():
    paused = "CapacityReached"
    bench = Bench()
    async with serving() as service, bench.courier(assignment(service.url), paused=lambda: paused):
        await until(lambda: bench.words == ["CapacityReached"])
        bench.send(message())
        await asyncio.sleep(0.5)
        assert not service.received
        paused = ""
        await until(lambda: bench.is_settled)
    assert len(service.received) == 1


async def test_a_spent_error_budget_pauses_and_goes_on_when_time_has_passed():
    bench = Bench()
    bench.send(*(message(f"{n}", f"k{n}") for n in range(20)))
    policy = {**QUICK, "errorBudget": {"letters": 5, "per": "2s"}}
    async with serving(status(400)) as service, bench.courier(assignment(service.url, policy=policy)):
        await until(lambda: bench.words == ["ErrorBudgetSpent"])
        await until(lambda: bench.is_settled)
    assert len(bench.buried()) == 20


async def test_a_dead_box_that_refuses_loses_nothing_and_heals():
    bench = Bench()
    bench.server.refuse["dead"] = BoxRefused("the disk is full")
    bench.send(message())
    async with serving(status(400)) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.words == ["BoxRefused"])
        bench.send(message("later"))
        assert not bench.is_settled
        del bench.server.refuse["dead"]
        await until(lambda: bench.is_settled)
    assert [one.value for one in bench.buried()] == [b"body", b"later"]


async def test_a_letter_too_large_gets_a_smaller_envelope():
    bench = Bench()
    bench.send(message())
    bench.server.boxes["dead"].max_message_bytes = 900
    long = lambda _: web.Response(status=400, text="x" * 2000)  # noqa: E731
    async with serving(long) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    (envelope,) = bench.envelopes()
    assert (envelope.failure.status, envelope.failure.message, envelope.id) == (400, "", "orders/0/0")


async def test_a_letter_that_fits_nowhere_is_held_and_said():
    bench = Bench()
    bench.send(message("x" * 2000))
    bench.server.boxes["dead"].max_message_bytes = 1000
    async with serving(status(400)) as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.words == ["TooLarge"])
        assert not bench.is_settled
        bench.server.boxes["dead"].max_message_bytes = None
        await until(lambda: bench.is_settled)
    assert len(bench.buried()) == 1


async def test_a_stopped_courier_finishes_what_is_on_its_way():
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(_: Received) -> web.Response:
        started.set()
        await gate.wait()
        return web.Response()

    bench = Bench()
    bench.send(message("one", "k"), message("two", "k"))
    async with serving(slow) as service:
        async with bench.courier(assignment(service.url)):
            await started.wait()
            asyncio.get_running_loop().call_later(0.3, gate.set)
        assert service.bodies == [b"one"]
        async with bench.courier(assignment(service.url)):
            await until(lambda: bench.is_settled)
    assert service.bodies == [b"one", b"two"]


async def test_attempts_go_on_counting_after_a_restart():
    policy = {
        "maxAttempts": 3,
        "backoff": {"strategy": "Fixed", "initial": "20s"},
        "circuitBreaker": {"enabled": False},
    }
    bench = Bench()
    bench.send(message())
    async with serving(status(503)) as service:
        told = assignment(service.url, policy=policy)
        for attempt in (1, 2, 3):
            async with bench.courier(told):
                await until(lambda attempt=attempt: len(service.received) == attempt and bool(_noted(bench, attempt)))
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3"]
    assert bench.envelopes()[0].attempts == 3


def _noted(bench: Bench, attempt: int) -> bool:
    notes = bench.server.groups["orders", "billing"].notes
    return len(bench.buried()) == 1 if attempt == 3 else [one[0] for one in notes.values()] == [attempt]


async def test_what_a_rebalance_took_away_is_dropped():
    gate, started = asyncio.Event(), asyncio.Event()

    async def slow(_: Received) -> web.Response:
        started.set()
        await gate.wait()
        return web.Response(status=400)

    bench = Bench()
    bench.send(*(message(f"{n}", "k") for n in range(3)))
    async with serving(slow) as service, bench.courier(assignment(service.url)):
        await started.wait()
        bench.server.expel("orders", "billing", "pod-0")
        gate.set()
        await until(lambda: bench.is_settled)
    assert sorted(one.value or b"" for one in bench.buried()) == [b"0", b"1", b"2"]


async def test_discarded_messages_leave_no_letter():
    policy = {**QUICK, "maxAttempts": 2, "onExhausted": "Discard"}
    bench = await buried_with(status(500), policy)
    assert not bench.buried()


async def test_a_letter_too_old_is_expired():
    policy = {"maxAge": "50ms", "backoff": {"strategy": "Fixed", "initial": "200ms"}, "maxAttempts": 100}
    (envelope,) = (await buried_with(status(503), policy)).envelopes()
    assert envelope.reason == "Expired"


async def test_success_may_be_other_statuses():
    bench = await buried_with(status(409), http={"success": ["200-299", 409]})
    assert not bench.buried()


async def test_compat_headers_are_written_beside_ours():
    bench = await buried_with(status(400), compat_headers=["KafkaConnect"])
    assert any(name.startswith("__connect.errors.") for name, _ in bench.buried()[0].headers)


async def test_a_letter_without_a_timestamp_of_its_own_is_delivered():
    bench = Bench()
    bench.send(replace(message(), timestamp=10**18))
    async with serving() as service, bench.courier(assignment(service.url)):
        await until(lambda: bench.is_settled)
    assert service.received[0].headers["Dlq-Timestamp"].startswith("9999-12-31")
