"""Faults of the target itself: the queue pauses with a reason, and they cost no message an attempt."""

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web

from deadletter.brokers.types import Claim
from deadletter.core.failure_categories import failure_from_error
from deadletter.core.letters import Place
from deadletter.core.policy import BreakerSettings, Policy
from deadletter.workers.courier.gate import Gate, Permit
from deadletter.workers.courier.key_ordering import KeyOrderedQueue
from deadletter.workers.delivery import outcome
from deadletter.workers.delivery.http import delivery
from deadletter.workers.delivery.http.outcomes import parse_retry_after
from tests.certificate_authority import FUTURE, PAST, CertificateAuthority
from tests.workers.couriers import QUICK, MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, serving, until
from tests.workers.raw_servers import OK, refusing_server, saying, server, server_tls

FRESH = KeyOrderedQueue()
FRESH.add(Claim(Place("orders", 0, 0), message()))
FEW = {**QUICK, "maxAttempts": 1}


async def test_a_forbidden_address_pauses_and_buries_nothing():
    queue = MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(20)))
    async with serving() as service:
        async with queue.courier(courier_assignment(service.url, policy=FEW, allow=[])):
            await until(lambda: queue.pause_reasons == ["TargetForbidden"])
        assert not service.received
        assert not queue.buried()
        async with queue.courier(courier_assignment(service.url, policy=FEW)):
            await until(lambda: queue.is_settled)
    assert len(service.received) == 20


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://169.254.169.254/latest", "http://[::1]/"])
async def test_forbidden_urls_pause_and_bury_nothing(url: str):
    queue = MemoryQueue()
    queue.send(message())
    assignment = courier_assignment("http://placeholder.test/", policy=FEW, allow=[]).model_copy(update={"url": url})
    async with queue.courier(assignment):
        await until(lambda: queue.pause_reasons == ["TargetForbidden"])
    assert not queue.buried()


async def test_a_rebinding_host_name_is_refused_until_its_address_is_allowed():
    answers = ["169.254.169.254"]

    async def rebinding(_: str, __: int) -> list[str]:
        return list(answers)

    queue = MemoryQueue()
    queue.send(message())
    async with serving() as service:
        assignment = courier_assignment(f"http://rebinding.test:{service.port}/", policy=FEW)
        async with queue.courier(assignment, resolver=rebinding):
            await until(lambda: queue.pause_reasons == ["TargetForbidden"])
            assert not service.received
            answers[:] = ["127.0.0.1"]
            await until(lambda: queue.is_settled)
            await until(lambda: queue.pause_reasons == [""])
    assert service.received[0].headers["Dlq-Attempt"] == "1"


async def test_a_host_name_without_an_address_pauses():
    queue = MemoryQueue()
    queue.send(message())
    async with queue.courier(courier_assignment("http://no-such-host.invalid/", policy=FEW)):
        await until(lambda: queue.pause_reasons == ["TargetUnresolvable"])
    assert not queue.buried()


@pytest.mark.parametrize("wrong", [PAST, FUTURE])
async def test_an_invalid_server_certificate_pauses_until_it_is_renewed(tmp_path: Path, wrong: tuple[float, float]):
    authority = CertificateAuthority.create(tmp_path)
    tls = server_tls(authority.sign("service", wrong))
    queue = MemoryQueue()
    queue.send(message())
    http = {"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}}}
    async with server(saying(OK), tls) as port:
        assignment = courier_assignment(f"https://127.0.0.1:{port}/", policy=FEW, http=http)
        async with queue.courier(assignment, secrets=lambda _, key: (tmp_path / key).read_bytes()):
            await until(lambda: queue.pause_reasons == ["CertificateRefused"])
            (status,) = queue.server.ledgers["dead.ledger"].worker_statuses.values()
            assert re.search("has expired: renew it|not valid yet: check the clocks", status.message)
            assert not queue.is_settled
            renewed = authority.sign("service")
            tls.load_cert_chain(renewed / "tls.crt", renewed / "tls.key")
            await until(lambda: queue.is_settled)
            await until(lambda: queue.pause_reasons == [""])
    assert not queue.buried()


async def test_an_expired_client_certificate_pauses_until_its_secret_is_renewed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(delivery, "SECRET_REFRESH_INTERVAL_S", 0.1)
    authority = CertificateAuthority.create(tmp_path)
    mine = authority.sign("mine", PAST)
    service = authority.sign("service")
    (service / "ca.crt").write_bytes(authority.certificate.read_bytes())
    queue = MemoryQueue()
    queue.send(message())
    http = {"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientSecretRef": {"name": "mine"}}}
    with refusing_server(server_tls(service, wants_client=True)) as port:
        assignment = courier_assignment(f"https://127.0.0.1:{port}/", policy=FEW, http=http)
        read = {"ca": tmp_path, "mine": mine}
        async with queue.courier(assignment, secrets=lambda name, key: (read[name] / key).read_bytes()):
            await until(lambda: queue.pause_reasons == ["CertificateRefused"])
            authority.sign("mine")
            await until(lambda: queue.is_settled)
    assert not queue.buried()


async def test_a_rotated_secret_header_is_used_without_a_restart(monkeypatch):
    monkeypatch.setattr(delivery, "SECRET_REFRESH_INTERVAL_S", 0.0)
    token = [b"old"]
    header = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "bearer"}}}
    queue = MemoryQueue()
    async with serving() as service:
        assignment = courier_assignment(service.url, policy=FEW, http={"headers": [header]})
        async with queue.courier(assignment, secrets=lambda _, __: token[0]):
            queue.send(message("1"))
            await until(lambda: queue.is_settled)
            token[0] = b"new"
            queue.send(message("2"))
            await until(lambda: len(service.received) == 2)
    assert [one.headers["Authorization"] for one in service.received] == ["old", "new"]


async def test_a_rotated_secret_does_not_interrupt_deliveries_in_flight(monkeypatch):
    monkeypatch.setattr(delivery, "SECRET_REFRESH_INTERVAL_S", 0.0)
    token, answered = [b"old"], asyncio.Event()
    header = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "bearer"}}}

    async def slow(one: Received) -> web.Response:
        if one.body == b"slow":
            await answered.wait()
        return web.Response()

    queue = MemoryQueue()
    async with serving(slow) as service:
        assignment = courier_assignment(service.url, policy=FEW, http={"headers": [header]})
        async with queue.courier(assignment, secrets=lambda _, __: token[0]):
            queue.send(message("slow", "1"))
            await until(lambda: len(service.received) == 1)
            token[0] = b"new"
            queue.send(message("quick", "2"))
            await until(lambda: len(service.received) == 2)
            answered.set()
            await until(lambda: queue.is_settled)
            old, new = (one.transport for one in service.received)
            await until(lambda: old.is_closing())
            assert not new.is_closing()
    assert [one.headers["Authorization"] for one in service.received] == ["old", "new"]  # neither of them twice
    assert not queue.buried()


async def test_a_missing_certificate_pauses():
    queue = MemoryQueue()
    queue.send(message())
    http = {"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}}}
    async with queue.courier(courier_assignment("https://localhost:1/", policy=FEW, http=http)):
        await until(lambda: queue.pause_reasons == ["TargetUnresolvable"])
    assert not queue.buried()


async def test_a_reset_or_endless_response_counts_as_an_attempt():
    for parts, forever in (([b""], False), ([b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"], True)):
        queue = MemoryQueue()
        queue.send(message("body", "k"))
        async with server(saying(*parts, forever=forever)) as port:
            assignment = courier_assignment(f"http://127.0.0.1:{port}/", policy={**QUICK, "maxAttempts": 2})
            async with queue.courier(assignment):
                await until(lambda queue=queue: queue.is_settled)
        (envelope,) = queue.envelopes()
        assert (envelope.attempts, envelope.failure.category, envelope.reason) == (2, "Network", "AttemptsExhausted")


async def test_a_timeout_counts_as_an_attempt():
    async def slow(_):
        await asyncio.sleep(3600)

    queue = MemoryQueue()
    queue.send(message())
    async with (
        serving(slow) as service,
        queue.courier(courier_assignment(service.url, policy={**QUICK, "maxAttempts": 2, "timeout": "200ms"})),
    ):
        await until(lambda: queue.is_settled)
    (envelope,) = queue.envelopes()
    assert (envelope.failure.type, envelope.attempts) == ("Timeout", 2)


def test_failures_while_the_circuit_is_open_count_as_no_attempt():
    gate = Gate(Policy(breaker=BreakerSettings(consecutive=2, open_for=1000)))
    refused = outcome.DeliveryOutcome(failure_from_error("ConnectionRefused"))
    assert gate.record(refused, Permit.Normal, 0, "a", is_first=True)
    assert gate.record(refused, Permit.Normal, 0, "b", is_first=True)
    assert gate.pause_reason(0)[0] == "CircuitOpen"
    assert not gate.record(refused, Permit.Normal, 1, "c", is_first=True)
    assert gate.acquire(500, FRESH) is None
    assert [gate.acquire(1000, FRESH) for _ in range(6)] == [Permit.Probe] * 5 + [None]
    assert not gate.record(refused, Permit.Normal, 1001, "d", is_first=True)  # an old one; the probes are still out
    assert gate.breaker.state == "HalfOpen"
    for _ in range(5):
        assert gate.acquire(1002, FRESH) is None
        assert not gate.record(refused, Permit.Probe, 1002, "e", is_first=True)
    assert gate.acquire(2001, FRESH) is None
    assert gate.acquire(2002, FRESH) is Permit.Probe
    gate.record(outcome.DELIVERED_OUTCOME, Permit.Probe, 2003, "f", is_first=True)
    assert gate.acquire(2003, FRESH) is Permit.Normal


def test_a_fault_permits_one_probe_at_a_time_with_growing_pauses():
    gate = Gate(Policy())
    fault = outcome.DeliveryOutcome(failure_from_error("Dns"), fault="TargetUnresolvable")
    for _ in range(5):  # all on their way when it began
        assert not gate.record(fault, Permit.Normal, 0, None, is_first=True)
    assert gate.acquire(999, FRESH) is None
    assert gate.acquire(1000, FRESH) is Permit.Probe
    assert gate.acquire(1001, FRESH) is None
    gate.record(fault, Permit.Probe, 1500, None, is_first=True)
    assert gate.acquire(3400, FRESH) is None
    assert gate.acquire(3500, FRESH) is Permit.Probe


@pytest.mark.parametrize(
    ("text", "wait"),
    [("3", 3000), (" 0 ", 0), ("", None), ("soon", None), ("-1", None), ("Thu, 01 Jan 1970 00:01:00 GMT", 50_000)],
)
def test_retry_after_is_parsed_in_seconds_and_as_a_date(text: str, wait: int | None):
    assert parse_retry_after(text, 10_000) == wait
