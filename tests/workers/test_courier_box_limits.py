"""Missing dead boxes, letters above the size limit and unusual messages, on a real Kafka and a real Redis."""

from collections import Counter

import pytest
from aiohttp import web

from deadletter.core.box_types import BoxSpec
from deadletter.core.headers import ATTEMPTS
from deadletter.core.letters import Message
from deadletter.wall_clock import monotonic_ms
from tests.helpers.headers import read_own_envelope
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import serving, status, until

LARGE = 12 << 20


def pause_of(courier) -> str:
    return courier.gate.pause_reason(monotonic_ms())[0]


async def test_a_deleted_dead_box_pauses_the_courier_until_it_is_created_again(queue: BrokerQueue):
    async with serving(status(422)) as service, queue.courier(queue.assignment(service.url)) as courier:
        await queue.broker.delete([f"{queue.prefix}dead"])
        await queue.send(*(message(f"m{n}", f"k{n}") for n in range(10)))
        await until(lambda: pause_of(courier) == "BoxMissing")
        await queue.create()
        await queue.until_buried(10)
        await until(lambda: not pause_of(courier))
    assert Counter(taken.message.value for taken in await queue.buried()) == Counter(
        f"m{n}".encode() for n in range(10)
    )


@pytest.mark.parametrize("queue", ["kafka"], indirect=True)
async def test_a_letter_above_the_size_limit_is_held_until_the_limit_is_raised(queue: BrokerQueue):
    dead = f"{queue.prefix}dead"
    await queue.broker.ensure(BoxSpec(dead, 2, 1, config={"max.message.bytes": "3000"}))
    await queue.send(message("x" * 1500, "fits"), message("y" * 5000, "too-large"))
    long = lambda _: web.Response(status=422, text="z" * 2000)  # noqa: E731
    async with serving(long) as service, queue.courier(queue.assignment(service.url)) as courier:
        await until(lambda: courier.gate.held_reason[0] == "TooLarge")
        await queue.until_buried(1)
        assert not pause_of(courier)
        await queue.broker.ensure(BoxSpec(dead, 2, 1, config={"max.message.bytes": "100000"}))
        await queue.until_buried(2)
    assert sorted(len(taken.message.value or b"") for taken in await queue.buried()) == [1500, 5000]


async def test_unusual_messages_are_buried_unchanged_and_block_no_others(queue: BrokerQueue):
    if not queue.spec.is_redis:
        for name in ("orders", "dead"):
            limit = {"max.message.bytes": str(LARGE)}
            await queue.broker.ensure(BoxSpec(f"{queue.prefix}{name}", 2, 1, config=limit))
    poison = (
        Message(None, None, (), 1_700_000_000_000),
        Message(b"\x00\xff\r\nX: y", b"", (("a", b"\xff\xfe"), ("evil", b"1\r\nX-Injected: 1")), 1_700_000_000_001),
        Message(b"many", b"v", tuple((f"h{n}", b"\xff" * 50) for n in range(500)), 1_700_000_000_002),
        Message(b"forged", b"v", ((ATTEMPTS, b"99"), ("dlq-id", b"mine"), ("host", b"evil")), 1_700_000_000_003),
        Message(b"large", bytes(10 << 20), (), 1_700_000_000_004),
    )
    await queue.send(*poison, message("last", "healthy"))
    answer = lambda one: web.Response(status=200 if one.body == b"last" else 422)  # noqa: E731
    async with serving(answer) as service, queue.courier(queue.assignment(service.url)):
        dead = await queue.until_buried(len(poison))
        await until(lambda: b"last" in service.bodies)
    found = {taken.message.key: taken.message for taken in dead}
    assert len(dead) == len(found) == len(poison)
    for one in poison:
        letter = found[one.key]
        assert (letter.key, letter.value or b"") == (one.key, one.value or b"")
        kept = [pair for pair in letter.headers if not pair[0].startswith(("dlq-", "x-orig-dlq-"))]
        assert kept == [pair for pair in one.headers if not pair[0].startswith("dlq-")]
        envelope = read_own_envelope(letter)
        assert envelope is not None
        assert (envelope.attempts, envelope.reason) == (1, "Refused")
    assert all("X-Injected" not in one.headers for one in service.received)
