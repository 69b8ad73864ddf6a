"""The courier on a real Kafka and a real Redis: deliveries, retries, burials, routes, parking, order."""

from collections import Counter, defaultdict

from aiohttp import web

from tests.helpers.headers import read_own_envelope
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, serving, until


async def test_messages_are_delivered_once(queue: BrokerQueue):
    await queue.send(*(message(f"m{n}", f"k{n % 5}") for n in range(200)))
    async with serving() as service:
        async with queue.courier(queue.assignment(service.url)):
            await until(lambda: len(service.received) >= 200)
        async with queue.courier(queue.assignment(service.url)):
            await queue.send(message("last", "k"))
            await until(lambda: b"last" in service.bodies)
    expected = {b"last", *(f"m{n}".encode() for n in range(200))}
    assert set(service.bodies) == expected
    assert len({one.id for one in service.received}) == len(expected)  # a redelivery would carry the same name


async def test_messages_are_retried_buried_and_routed(queue: BrokerQueue):
    seen: dict[bytes, int] = defaultdict(int)

    def answer(one: Received) -> web.Response:
        seen[one.body] += 1
        if one.body.startswith(b"flaky"):
            return web.Response(status=200 if seen[one.body] >= 3 else 503)
        codes = {b"broken": 503, b"bad": 422, b"gone": 410}
        return web.Response(status=codes.get(one.body.split(b"-")[0], 200))

    names = [f"{kind}-{n}" for kind in ("flaky", "broken", "bad", "gone", "good") for n in range(5)]
    await queue.send(*(message(name, name) for name in names))
    routes = [{"match": 'error.category == "Validation"', "box": f"{queue.prefix}other"}]
    async with serving(answer) as service, queue.courier(queue.assignment(service.url, routes=routes)):
        await queue.until_buried(10)
        await until(lambda: sum(seen[f"flaky-{n}".encode()] for n in range(5)) >= 15)
    dead, other = await queue.buried(), await queue.buried("other")
    assert Counter(taken.message.value for taken in dead) == Counter(
        f"{kind}-{n}".encode() for kind in ("broken", "gone") for n in range(5)
    )
    assert Counter(taken.message.value for taken in other) == Counter(f"bad-{n}".encode() for n in range(5))
    for taken in dead:
        envelope = read_own_envelope(taken.message)
        assert envelope is not None
        is_broken = (taken.message.value or b"").startswith(b"broken")
        assert (envelope.attempts, envelope.reason) == ((5, "AttemptsExhausted") if is_broken else (1, "Refused"))
        assert envelope.origin.topic == f"{queue.prefix}orders"


async def test_parked_letters_keep_their_attempts(queue: BrokerQueue):
    policy = {**QUICK, "maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "300ms"}}
    await queue.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
    async with serving(lambda _: web.Response(status=503)) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        async with queue.courier(assignment):
            dead = await queue.until_buried(10)
    attempts: dict[str, set[str]] = defaultdict(set)
    for one in service.received:
        attempts[one.id].add(one.headers["Dlq-Attempt"])
    assert len(attempts) == 10
    assert all(found == {"1", "2", "3"} for found in attempts.values())
    assert Counter(taken.message.value for taken in dead) == Counter(f"m{n}".encode() for n in range(10))


async def test_order_per_key_is_kept_through_inline_retries(queue: BrokerQueue):
    seen: dict[bytes, int] = defaultdict(int)

    def flaky(one: Received) -> web.Response:
        seen[one.body] += 1
        return web.Response(status=503 if one.body.endswith(b"3") and seen[one.body] < 3 else 200)

    await queue.send(*(message(f"{n:03d}", f"k{n % 4}") for n in range(100)))
    async with serving(flaky) as service, queue.courier(queue.assignment(service.url)):
        await until(lambda: len({one.id for one in service.received}) == 100 and len(service.received) >= 120)
    for key in range(4):
        bodies = [one.body for one in service.received if one.headers["Dlq-Key"] == f"k{key}"]
        assert bodies == sorted(bodies)  # a retry comes before its successors


async def test_two_couriers_share_the_work_and_a_stopped_one_loses_nothing(queue: BrokerQueue):
    await queue.send(*(message(f"a{n}", f"k{n}") for n in range(50)))
    async with serving() as service:
        assignment = queue.assignment(service.url)
        async with queue.courier(assignment, "pod-0"):
            await until(lambda: len(service.received) >= 50)
            async with queue.courier(assignment, "pod-1"):
                await queue.send(*(message(f"b{n}", f"k{n}") for n in range(50)))
                await until(lambda: len(set(service.bodies)) == 100)
            await queue.send(*(message(f"c{n}", f"k{n}") for n in range(50)))
            await until(lambda: len(set(service.bodies)) == 150)
    assert not await queue.buried()
