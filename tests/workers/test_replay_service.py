"""A Replay to a service: what it accepts is settled, what it rejects stays open and counts as failed again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from deadletter.api.worker_config import ReplayAssignment
from deadletter.workers import exit_status
from deadletter.workers.replay import sinks
from deadletter.workers.replay.main import open_sink
from tests.workers.couriers import no_secret
from tests.workers.raw_servers import server_tls
from tests.workers.replay_scene import Scene, adds_up, letter

LOCAL = ("127.0.0.0/8", "::1/128")
CA = {"caSecretRef": {"name": "authority", "key": "ca.crt"}}


class Service:
    """Answers every request with a status chosen by its body; remembers bodies, headers and keys."""

    def __init__(self, status) -> None:
        self.status, self.bodies, self.heads, self.keys = status, [], [], []

    async def visit(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields["Content-Length"]))
                self.bodies.append(body)
                self.heads.append(fields)
                self.keys.append(fields["Idempotency-Key"])
                status = self.status(self, body)
                writer.write(f"HTTP/1.1 {status} Answer\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()


@asynccontextmanager
async def listening(status, tls=None) -> AsyncIterator[tuple[Service, int]]:
    service = Service(status)
    server = await asyncio.start_server(service.visit, "127.0.0.1", 0, ssl=tls)
    yield service, server.sockets[0].getsockname()[1]
    server.close()


@asynccontextmanager
async def serving(status):
    """A service, and the sink that a Replay opens for it."""
    async with listening(status) as (service, port), AsyncExitStack() as stack:
        target = {"kind": "Service", "url": f"http://127.0.0.1:{port}/in"}
        yield service, await open_sink(assignment_to(target), no_secret, stack)


def assignment_to(target, **more) -> ReplayAssignment:
    return Scene(broker=None).assignment(target=target, allow=LOCAL, **more)


TARGET = {"kind": "Service", "url": "http://service.test/in"}


async def test_what_the_service_takes_is_settled(scene):
    await scene.bury(*(letter(number) for number in range(20)))
    async with serving(lambda service, body: 204) as (service, sink):
        result = await scene.run(scene.assignment(target=TARGET), sink=sink)
    assert result.reason == "AllReplayed"
    assert len(service.bodies) == 20
    assert "orders/0/3" in service.keys
    assert await scene.open_letters() == []


async def test_it_is_told_where_and_when_a_message_first_came(scene):
    await scene.bury(letter(7, partition=1))
    async with serving(lambda service, body: 200) as (service, sink):
        await scene.run(scene.assignment(target=TARGET), sink=sink)
    (head,) = service.heads
    assert [head[f"Dlq-{name}"] for name in ("Topic", "Partition", "Offset")] == ["orders", "1", "7"]
    assert head["Dlq-Timestamp"] == "2023-11-14T22:13:20.007Z"


async def test_what_it_refuses_stays_and_has_failed_again(scene):
    await scene.bury(*(letter(number) for number in range(6)))
    async with serving(lambda service, body: 400 if body == b'{"n": 2}' else 200) as (_, sink):
        result = await scene.run(scene.assignment(target=TARGET), sink=sink)
    assert (result.code, result.reason) == (exit_status.FAILED, "DeliveryFailed")
    assert result.message == (
        "The service rejected 1 of 6 letters; they are still open in the dead box. "
        "Replay them again when the service accepts them."
    )
    assert await scene.open_letters() == [2]
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.failed_again) == (6, 1)
    assert adds_up([progress])


async def test_a_share_of_refusals_may_be_allowed(scene):
    await scene.bury(*(letter(number) for number in range(4)))
    verify = {"window": "1ms", "maxFailureShare": 25}
    async with serving(lambda service, body: 422 if body == b'{"n": 2}' else 200) as (_, sink):
        result = await scene.run(scene.assignment(target=TARGET, verify=verify), sink=sink)
    assert result.reason == "AllReplayed"


async def test_an_overloaded_service_is_asked_again_with_the_same_key(scene, monkeypatch):
    monkeypatch.setattr(sinks, "INITIAL_DELAY_S", 0.001)
    await scene.bury(letter(1))
    async with serving(lambda service, body: 503 if len(service.bodies) < 3 else 200) as (service, sink):
        result = await scene.run(scene.assignment(target=TARGET), sink=sink)
    assert result.reason == "AllReplayed"
    assert service.keys == ["orders/0/1"] * 3


async def test_a_letter_the_service_breaks_at_has_failed_again_and_hinders_no_other(scene, monkeypatch):
    monkeypatch.setattr(sinks, "INITIAL_DELAY_S", 0.001)
    await scene.bury(*(letter(number) for number in range(6)))
    async with serving(lambda service, body: 500 if body == b'{"n": 2}' else 200) as (service, sink):
        result = await scene.run(scene.assignment(target=TARGET), sink=sink)
    assert (result.code, result.reason) == (exit_status.FAILED, "DeliveryFailed")
    assert await scene.open_letters() == [2]
    assert [service.keys.count(f"orders/0/{number}") for number in range(6)] == [1, 1, sinks.MAX_ATTEMPTS, 1, 1, 1]


async def test_a_canary_sent_to_a_service_that_is_still_broken_stops_by_itself(scene, monkeypatch):
    monkeypatch.setattr(sinks, "INITIAL_DELAY_S", 0.001)
    await scene.bury(*(letter(number) for number in range(6)))
    canary = {"steps": [1], "wait": "1ms", "maxFailureShare": 10}
    async with serving(lambda service, body: 500) as (service, sink):
        result = await scene.run(scene.assignment(target=TARGET, canary=canary), sink=sink)
    assert (result.code, result.reason) == (exit_status.FAILED, "FailureShareExceeded")
    assert set(service.keys) == {"orders/0/0"}
    assert await scene.open_letters() == list(range(6))


async def test_a_service_that_stays_away_ends_the_pod_and_settles_nothing(scene, monkeypatch):
    monkeypatch.setattr(sinks, "INITIAL_DELAY_S", 0.001)
    monkeypatch.setattr("deadletter.workers.backoff.INITIAL_DELAY_S", 0.001)
    await scene.bury(letter(1))
    async with serving(lambda service, body: 503) as (_, sink):
        result = await scene.run(scene.assignment(target=TARGET), sink=sink)
    assert (result.code, result.reason) == (exit_status.TRY_AGAIN, "DeliveryFailed")
    assert await scene.open_letters() == [1]


async def replay_by_tls(scene, certificates: Path, host: str, tls):
    """Replay one letter to an https service; its exit status and what the service received."""
    await scene.bury(letter(1))
    http = {"serviceRef": {"name": "billing", "port": 443}, **({"tls": tls} if tls is not None else {})}
    async with (
        listening(lambda service, body: 200, server_tls(certificates)) as (service, port),
        AsyncExitStack() as stack,
    ):
        target = {"kind": "Service", "url": f"https://{host}:{port}/in"}
        assignment = scene.assignment(target=target, http=http, allow=LOCAL)
        sink = await open_sink(assignment, lambda _, key: (certificates / key).read_bytes(), stack)
        return await scene.run(assignment, sink=sink), service


@pytest.mark.parametrize(
    ("host", "tls"),
    [("localhost", CA), ("localhost", {"insecureSkipVerify": True}), ("127.0.0.1", {"insecureSkipVerify": True})],
    ids=["CA", "not verified", "not verified, another name"],
)
async def test_an_https_service_gets_letters_by_tls(scene, certificates: Path, host: str, tls):
    status, service = await replay_by_tls(scene, certificates, host, tls)
    assert status.reason == "AllReplayed"
    assert service.keys == ["orders/0/1"]
    assert await scene.open_letters() == []


@pytest.mark.parametrize(
    ("host", "tls", "remedy"),
    [("localhost", None, "caSecretRef"), ("localhost", {}, "caSecretRef"), ("127.0.0.1", CA, "another name")],
    ids=["no tls section", "no CA", "another name"],
)
async def test_an_https_service_that_cannot_be_verified_gets_nothing(
    scene, certificates: Path, monkeypatch, host: str, tls, remedy: str
):
    monkeypatch.setattr("deadletter.workers.backoff.INITIAL_DELAY_S", 0.001)
    status, service = await replay_by_tls(scene, certificates, host, tls)
    assert (status.code, status.reason) == (exit_status.TRY_AGAIN, "DeliveryFailed")
    assert remedy in status.message
    assert service.bodies == []
    assert await scene.open_letters() == [1]
