"""The courier on the memory broker: the content of requests and letters, and the limit of its memory."""

import asyncio
from base64 import b64decode
from dataclasses import replace

from aiohttp import web

from deadletter.core.headers import REPLAYS
from deadletter.core.letters import Message
from tests.workers.couriers import MemoryQueue, buried_with, courier_assignment, message
from tests.workers.http_service import Received, serving, status, until


async def test_every_message_is_delivered_once():
    queue = MemoryQueue(partitions=3)
    queue.send(*(message(f"m{n}", f"k{n % 7}") for n in range(300)))
    async with serving() as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    assert sorted(service.bodies) == sorted(f"m{n}".encode() for n in range(300))
    assert len({one.id for one in service.received}) == 300
    assert not queue.buried()


async def test_a_request_names_the_origin_of_its_message():
    queue = MemoryQueue()
    queue.send(message("hello", "key-1", ("traceparent", b"00-1-2-01"), ("x-team", b"pay"), ("secret", b"no")))
    async with serving() as service:
        http = {"forwardHeaders": ["x-*"], "headers": [{"name": "X-Fixed", "value": "yes"}]}
        async with queue.courier(courier_assignment(service.url, http=http)):
            await until(lambda: queue.is_settled)
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


async def test_a_cloud_event_is_sent_in_binary_mode():
    queue = MemoryQueue()
    event = (("ce_specversion", b"1.0"), ("ce_subject", "größe 1".encode()), ("content-type", b"application/json"))
    queue.send(message("{}", "k", *event))
    async with serving() as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    headers = service.received[0].headers
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-subject"] == "gr%C3%B6%C3%9Fe%201"
    assert headers["Content-Type"] == "application/json"


async def test_unusual_keys_values_and_headers_arrive_unchanged():
    poison = (
        Message(None, None, (), 1),
        Message(b"\x00\xff\r\nX: y", b"", (("a\r\nb", b"x"), ("evil", b"1\r\nX-Injected: 1")), 2),
        Message(b"k" * 10_000, bytes(3 << 20), tuple((f"h{n}", b"\xff" * 50) for n in range(500)), 3),
        Message(b"k", b"v", (("content-length", b"999"), ("host", b"evil"), ("dlq-id", b"forged")), -1),
    )
    queue = MemoryQueue()
    queue.send(*poison)
    async with (
        serving() as service,
        queue.courier(courier_assignment(service.url, http={"forwardHeaders": ["*"]})),
    ):
        await until(lambda: queue.is_settled)
    seen = {one.headers["Dlq-Offset"]: one for one in service.received}
    assert [seen[str(n)].body for n in range(4)] == [one.value or b"" for one in poison]
    assert seen["0"].headers["Dlq-Null"] == "true"
    assert b64decode(seen["1"].headers["Dlq-Key"]) == poison[1].key
    assert all("X-Injected" not in one.headers for one in service.received)
    assert seen["2"].headers["Dlq-Key-Encoding"] == "omitted"
    assert seen["3"].headers["Idempotency-Key"] == "orders/0/3"


async def test_a_buried_message_keeps_its_bytes_and_spoofed_headers_are_renamed():
    queue = MemoryQueue()
    poison = Message(b"\x00", b"\xff\xfe", (("dlq-attempts", b"99"), ("x", b"\x80"), (REPLAYS, b"2")), 5)
    queue.send(poison)
    async with serving(status(400)) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    (letter,) = queue.buried()
    assert (letter.key, letter.value) == (poison.key, poison.value)
    assert dict(letter.headers)["x-orig-dlq-attempts"] == b"99"
    assert dict(letter.headers)["x"] == b"\x80"
    (envelope,) = queue.envelopes()
    assert (envelope.attempts, envelope.replays, envelope.reason) == (1, 2, "Refused")


async def test_a_message_without_a_timestamp_is_delivered():
    queue = MemoryQueue()
    queue.send(replace(message(), timestamp=10**18))
    async with serving() as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    assert service.received[0].headers["Dlq-Timestamp"].startswith("9999-12-31")


async def test_other_statuses_can_mean_success():
    queue = await buried_with(status(409), http={"success": ["200-299", 409]})
    assert not queue.buried()
    (envelope,) = (await buried_with(status(202), http={"success": ["200-201"]})).envelopes()
    assert (envelope.failure.status, envelope.attempts) == (202, 1)


async def test_compat_headers_are_written_in_addition_to_our_headers():
    queue = await buried_with(status(400), compat_headers=["KafkaConnect"])
    assert any(name.startswith("__connect.errors.") for name, _ in queue.buried()[0].headers)


async def test_memory_is_bounded_while_a_service_hangs():
    gate = asyncio.Event()

    async def hanging(_: Received) -> web.Response:
        await gate.wait()
        return web.Response()

    queue = MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(500)))
    async with (
        serving(hanging) as service,
        queue.courier(courier_assignment(service.url, delivery={"concurrency": 10})) as courier,
    ):
        await until(lambda: len(service.received) == 10)
        assert courier.in_flight.held <= 20
        assert len(service.received) == 10
        gate.set()
        await until(lambda: queue.is_settled)
    assert len(service.received) == 500


async def test_a_letter_that_is_too_large_is_buried_without_failure_details():
    queue = MemoryQueue()
    queue.send(message())
    queue.server.boxes["dead"].max_message_bytes = 900
    long = lambda _: web.Response(status=400, text="x" * 2000)  # noqa: E731
    async with serving(long) as service, queue.courier(courier_assignment(service.url)):
        await until(lambda: queue.is_settled)
    (envelope,) = queue.envelopes()
    assert (envelope.failure.status, envelope.failure.message, envelope.id) == (400, "", "orders/0/0")


async def test_letters_that_match_a_route_are_buried_in_its_box():
    queue = MemoryQueue()
    queue.send(message("bad", "a"), message("odd", "b"))

    def answer(one: Received) -> web.Response:
        return web.Response(status=422 if one.body == b"bad" else 410)

    routes = [{"match": 'error.category == "Validation"', "box": "other"}]
    async with serving(answer) as service, queue.courier(courier_assignment(service.url, routes=routes)):
        await until(lambda: queue.is_settled)
    assert [one.value for one in queue.buried("other")] == [b"bad"]
    assert [one.value for one in queue.buried("dead")] == [b"odd"]
