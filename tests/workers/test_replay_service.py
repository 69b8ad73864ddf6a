"""Straight to a service: what it takes is settled, what it refuses stays and counts as failed again."""

import asyncio
from contextlib import asynccontextmanager

from deadletter.workers.replay.services import open_service

from deadletter.api.delivery import HttpDelivery
from deadletter.workers import exit_status
from deadletter.workers.replay import sinks
from tests.workers.replay_scene import adds_up, letter

LOCAL = ("127.0.0.0/8",)


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
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def serving(status):
    service = Service(status)
    server = await asyncio.start_server(service.visit, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/in"
    async with open_service(url, HttpDelivery(url=url), lambda *_: b"", LOCAL) as carrier:
        yield service, carrier
    server.close()


TARGET = {"kind": "Service", "url": "http://service.test/in"}


async def test_what_the_service_takes_is_settled(scene):
    await scene.bury(*(letter(number) for number in range(20)))
    async with serving(lambda service, body: 204) as (service, carrier):
        ending = await scene.run(scene.assignment(target=TARGET), sink=carrier)
    assert ending.reason == "AllReplayed"
    assert len(service.bodies) == 20
    assert "orders/0/3" in service.keys
    assert await scene.open_letters() == []


async def test_it_is_told_where_and_when_a_message_first_came(scene):
    await scene.bury(letter(7, partition=1))
    async with serving(lambda service, body: 200) as (service, carrier):
        await scene.run(scene.assignment(target=TARGET), sink=carrier)
    (told,) = service.heads
    assert [told[f"Dlq-{name}"] for name in ("Topic", "Partition", "Offset")] == ["orders", "1", "7"]
    assert told["Dlq-Timestamp"] == "2023-11-14T22:13:20.007Z"


async def test_what_it_refuses_stays_and_has_failed_again(scene):
    await scene.bury(*(letter(number) for number in range(6)))
    async with serving(lambda service, body: 400 if body == b'{"n": 2}' else 200) as (_, carrier):
        ending = await scene.run(scene.assignment(target=TARGET), sink=carrier)
    assert (ending.code, ending.reason) == (exit_status.FAILED, "DeliveryFailed")
    assert ending.message == "The service did not take 1 of 6 letters; they are still in the dead box."
    assert await scene.open_letters() == [2]
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.failed_again) == (6, 1)
    assert adds_up([progress])


async def test_a_share_of_refusals_may_be_allowed(scene):
    await scene.bury(*(letter(number) for number in range(4)))
    verify = {"window": "1ms", "maxFailureShare": 25}
    async with serving(lambda service, body: 422 if body == b'{"n": 2}' else 200) as (_, carrier):
        ending = await scene.run(scene.assignment(target=TARGET, verify=verify), sink=carrier)
    assert ending.reason == "AllReplayed"


async def test_an_overloaded_service_is_asked_again_with_the_same_key(scene, monkeypatch):
    monkeypatch.setattr(sinks, "FIRST_WAIT_S", 0.001)
    await scene.bury(letter(1))
    async with serving(lambda service, body: 503 if len(service.bodies) < 3 else 200) as (service, carrier):
        ending = await scene.run(scene.assignment(target=TARGET), sink=carrier)
    assert ending.reason == "AllReplayed"
    assert service.keys == ["orders/0/1"] * 3


async def test_a_letter_the_service_breaks_at_has_failed_again_and_hinders_no_other(scene, monkeypatch):
    monkeypatch.setattr(sinks, "FIRST_WAIT_S", 0.001)
    await scene.bury(*(letter(number) for number in range(6)))
    async with serving(lambda service, body: 500 if body == b'{"n": 2}' else 200) as (service, carrier):
        ending = await scene.run(scene.assignment(target=TARGET), sink=carrier)
    assert (ending.code, ending.reason) == (exit_status.FAILED, "DeliveryFailed")
    assert await scene.open_letters() == [2]
    assert [service.keys.count(f"orders/0/{number}") for number in range(6)] == [1, 1, sinks.ATTEMPTS, 1, 1, 1]


async def test_a_canary_sent_to_a_service_that_is_still_broken_stops_by_itself(scene, monkeypatch):
    monkeypatch.setattr(sinks, "FIRST_WAIT_S", 0.001)
    await scene.bury(*(letter(number) for number in range(6)))
    canary = {"steps": [1], "wait": "1ms", "maxFailureShare": 10}
    async with serving(lambda service, body: 500) as (service, carrier):
        ending = await scene.run(scene.assignment(target=TARGET, canary=canary), sink=carrier)
    assert (ending.code, ending.reason) == (exit_status.FAILED, "FailureShareExceeded")
    assert set(service.keys) == {"orders/0/0"}
    assert await scene.open_letters() == list(range(6))


async def test_a_service_that_stays_away_ends_the_pod_and_settles_nothing(scene, monkeypatch):
    monkeypatch.setattr(sinks, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("deadletter.workers.backoff.FIRST_WAIT_S", 0.001)
    await scene.bury(letter(1))
    async with serving(lambda service, body: 503) as (_, carrier):
        ending = await scene.run(scene.assignment(target=TARGET), sink=carrier)
    assert (ending.code, ending.reason) == (exit_status.TRY_AGAIN, "DeliveryFailed")
    assert await scene.open_letters() == [1]
