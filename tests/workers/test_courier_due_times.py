"""When parked letters are due, which timestamp a request has, and how long a courier takes to stop."""

import asyncio
import time
from statistics import median

import pytest
from aiohttp import web

from deadletter.brokers.kafka.subscription import settlement_writer
from deadletter.brokers.types import Claim
from deadletter.core import times
from deadletter.core.headers import add_headers
from deadletter.core.letters import Envelope, Message, Origin, Place
from deadletter.plan import common_manifests
from deadletter.workers.courier import letters
from deadletter.workers.courier.courier import SHUTDOWN_GRACE_S, Courier
from deadletter.workers.courier.main import delivery_for, subscription_spec
from deadletter.workers.delivery.http.request import RequestRenderer
from tests.helpers.headers import read_own_envelope
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message, no_secret
from tests.workers.http_service import Received, serving, until

WAIT_S = 3.0
LATE_S = 2.0
TAKEN_OVER_S = 15.0
SENT, LATER = 1_700_000_000_000, 1_700_000_600_000


async def test_parked_letters_are_delivered_within_two_seconds_after_they_are_due(queue: BrokerQueue):
    seen: dict[bytes, list[float]] = {}

    def answer(one: Received) -> web.Response:
        moments = seen.setdefault(one.body, [])
        moments.append(time.monotonic())
        return web.Response(status=200 if len(moments) > 1 else 503)

    policy = {**QUICK, "backoff": {"strategy": "Fixed", "initial": f"{WAIT_S:.0f}s"}}
    await queue.send(*(message(f"m{n}", f"k{n}") for n in range(20)))
    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        async with queue.courier(assignment):
            await until(lambda: len(seen) == 20 and all(len(moments) == 2 for moments in seen.values()))
    late = [again - first - WAIT_S for first, again in seen.values()]
    assert min(late) >= 0
    assert median(late) <= LATE_S  # a machine that is busy may hold back some


async def test_every_attempt_of_a_parked_letter_has_the_timestamp_of_its_message(queue: BrokerQueue):
    policy = {**QUICK, "maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "300ms"}}
    await queue.send(message())
    async with serving(lambda _: web.Response(status=503)) as service:
        assignment = queue.assignment(service.url, policy=policy, delivery={"inlineLimit": "0s"})
        async with queue.courier(assignment):
            (letter,) = await queue.until_buried(1)
    envelope = read_own_envelope(letter.message)
    assert envelope is not None
    assert envelope.origin.timestamp is not None
    assert [one.headers["Dlq-Attempt"] for one in service.received] == ["1", "2", "3"]
    assert {one.headers["Dlq-Timestamp"] for one in service.received} == {times.render(envelope.origin.timestamp)}


@pytest.mark.parametrize(
    ("parked", "origin", "expected"),
    [
        (True, Origin("orders", 0, 7, SENT), SENT),
        (True, Origin(timestamp=SENT), SENT),
        (True, Origin("orders", 0, 7), LATER),
        (True, Origin(), LATER),
        (False, Origin("orders", 0, 7, SENT), LATER),  # these headers are the sender's
    ],
    ids=["parked", "of no known topic", "of no known time", "of no origin", "forged"],
)
def test_the_timestamp_of_a_request(parked: bool, origin: Origin, expected: int):
    one = add_headers(Message(b"k", b"v", timestamp=LATER), Envelope(origin=origin, id="orders/0/7"))
    claim = Claim(Place("box", 0, 9), one, parked=parked)
    head = RequestRenderer("POST", "/", "shop.test").render_head(one, letters.delivery_metadata(claim))
    assert f"Dlq-Timestamp: {times.render(expected)}\r\n".encode() in head


async def test_a_delivery_that_outlasts_the_grace_period_is_claimed_by_the_next_courier(queue: BrokerQueue):
    over = asyncio.Event()

    async def hanging_at_first(_: Received) -> web.Response:
        if len(service.received) == 1:
            await over.wait()
        return web.Response()

    async with serving(hanging_at_first) as service:
        assignment = queue.assignment(service.url)
        stop, delivery = asyncio.Event(), delivery_for(assignment, no_secret)
        async with queue.broker.subscribe(subscription_spec(assignment, "pod-0")) as subscription:
            working = asyncio.ensure_future(Courier(assignment, subscription, delivery).run(stop, grace=0.5))
            await queue.send(message())
            await until(lambda: len(service.received) == 1)
            stop.set()
            await asyncio.wait_for(working, 60)
        await delivery.close()
        stopped = time.monotonic()
        async with queue.courier(assignment, "pod-1"):
            await until(lambda: len(service.received) == 2)
            assert time.monotonic() - stopped < TAKEN_OVER_S
        over.set()
    assert len({one.id for one in service.received}) == 1
    assert {one.headers["Dlq-Attempt"] for one in service.received} == {"1"}
    assert not await queue.buried()


def test_the_grace_period_of_the_pod_is_longer_than_that_of_the_courier():
    made = common_manifests.pod_spec(
        "courier", "orders-courier", "default", (), common_manifests.WorkerImage("dlq-operator", "Always")
    )
    leaving = settlement_writer.FLUSH_TIMEOUT_S + 10  # what is written is awaited, then the group is left
    assert SHUTDOWN_GRACE_S + leaving < made["terminationGracePeriodSeconds"]
