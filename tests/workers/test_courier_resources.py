"""Secrets that a courier reads, the memory it uses and the metrics it exports."""

import asyncio
from pathlib import Path

from aiohttp import web
from structlog.testing import capture_logs

from deadletter.core.letters import Message, Place
from deadletter.workers.courier.claim_capacity import MAX_BYTES
from deadletter.workers.courier.main import delivery_for
from deadletter.workers.delivery.base import DeliveryMetadata
from deadletter.workers.health import ProbeHandlers, serve_probes
from tests.workers.couriers import QUICK, MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, serving, until
from tests.workers.raw_servers import OK, server, server_tls
from tests.workers.test_health import ask

LARGE = 6 << 20


async def test_certificates_and_headers_come_from_secrets(certificates: Path):
    request_heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()

    secrets = {
        ("authority", "ca.crt"): (certificates / "ca.crt").read_bytes(),
        ("mine", "tls.crt"): (certificates / "client.crt").read_bytes(),
        ("mine", "tls.key"): (certificates / "client.key").read_bytes(),
        ("token", "header"): b"Bearer canary-90\n",
    }
    http = {
        "tls": {"caSecretRef": {"name": "authority", "key": "ca.crt"}, "clientSecretRef": {"name": "mine"}},
        "headers": [{"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "header"}}}],
    }
    async with server(talk, server_tls(certificates, wants_client=True)) as port:
        assignment = courier_assignment(f"https://localhost:{port}/", http=http, allow=["127.0.0.0/8", "::1/128"])
        delivery = delivery_for(assignment, lambda name, key: secrets[name, key])
        outcome = await delivery.attempt(Message(b"k", b""), DeliveryMetadata("orders/0/0", Place("orders", 0, 0), 1))
        await delivery.close()
    assert outcome.failure is None
    assert b"\r\nAuthorization: Bearer canary-90\r\n" in request_heads[0]


async def test_the_payload_of_held_messages_is_limited():
    gate = asyncio.Event()

    async def hanging(_: Received) -> web.Response:
        await gate.wait()
        return web.Response()

    queue, content = MemoryQueue(), "x" * LARGE
    queue.send(*(message(content, f"k{n}") for n in range(30)))
    async with (
        serving(hanging) as service,
        queue.courier(courier_assignment(service.url, delivery={"concurrency": 64})) as courier,
    ):
        await until(lambda: courier.in_flight.bytes + LARGE > MAX_BYTES)
        await until(lambda: len(service.received) == courier.in_flight.held)
        assert courier.in_flight.bytes < MAX_BYTES + LARGE  # the last one taken may reach over it
        gate.set()
        await until(lambda: queue.is_settled)
    assert len(service.received) == 30


async def test_metrics_count_deliveries_letters_and_retries():
    def answer(one: Received) -> web.Response:
        codes = {b"bad": 422, b"flaky": 503 if one.headers["Dlq-Attempt"] == "1" else 200, b"gone": 410}
        action = {"Dlq-Action": "discard"} if one.body == b"unwanted" else {}
        later = {"Retry-After": "3600"} if one.body == b"later" else {}
        return web.Response(status=429 if later else codes.get(one.body, 200), headers={**action, **later})

    queue = MemoryQueue()
    queue.send(*(message(name, name) for name in ("good", "bad", "flaky", "gone", "unwanted", "later")))
    async with serving(answer) as service:
        policy = {**QUICK, "retryAfter": {"max": "2h"}}
        assignment = courier_assignment(service.url, policy=policy, queue="counted")
        with capture_logs() as logs:
            async with queue.courier(assignment):
                await until(lambda: len(queue.parked) == 1 and len(queue.buried()) == 2)
                await until(lambda: len(service.received) == 7)
    async with serve_probes(ProbeHandlers(), 0, "127.0.0.1") as port:
        _, _, text = await ask(port, "/metrics")
    for name, count, labels in (
        ("dlq_delivery_attempts_total", 2, {"outcome": "delivered"}),
        ("dlq_delivery_attempts_total", 5, {"outcome": "failed"}),
        ("dlq_letters_buried_total", 1, {"category": "Validation", "reason": "Refused"}),
        ("dlq_letters_buried_total", 1, {"category": "Permanent", "reason": "Refused"}),
        ("dlq_letters_discarded_total", 1, {"reason": "ServiceAsked"}),
        ("dlq_retries_total", 1, {"where": "inline"}),
        ("dlq_retries_total", 1, {"where": "parked"}),
        ("dlq_delivery_duration_seconds_count", 7, {}),
    ):
        named = {"namespace": "test", "queue": "counted", **labels}
        line = ",".join(f'{label}="{value}"' for label, value in sorted(named.items()))
        assert f"{name}{{{line}}} {float(count)}" in text
    for gauge in ("dlq_circuit_open", "dlq_courier_in_flight", "dlq_courier_lag", "dlq_retries_parked"):
        assert f'{gauge}{{namespace="test",queue="counted"}} ' in text
    assert [one["log_level"] for one in logs if one["event"] == "message discarded"] == ["warning"]
