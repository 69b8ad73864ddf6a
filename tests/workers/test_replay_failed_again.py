"""Canary steps and verification: letters that fail again are found and counted, and fail the Replay."""

import asyncio
from dataclasses import replace

import pytest

from deadletter.brokers.memory import MemoryBroker, MemoryServer
from deadletter.core.headers import read_headers
from deadletter.core.letters import Envelope, Origin
from deadletter.workers import exit_status
from deadletter.workers.replay.failed_again import was_sent_by
from deadletter.workers.replay.sinks import BrokerSink
from tests.workers.replay_scene import Application, Scene, adds_up, consume_during_waits, letter

SPRING = "kafka_dlt-original-topic"


@pytest.fixture
async def scene():
    return await Scene(MemoryBroker(MemoryServer()), partitions=2).build()


CANARY = {"steps": [1, 4], "wait": "1ms", "maxFailureShare": 25}
VERIFY = {"window": "1ms", "maxFailureShare": 50}


@pytest.mark.parametrize("keeps_headers", [True, False])
async def test_letters_that_fail_again_are_counted_exactly(scene, monkeypatch, keeps_headers):
    consume_during_waits(monkeypatch, Application(scene, {2, 5, 7}, keeps_headers))
    await scene.bury(*(letter(number) for number in range(10)))
    result = await scene.replay(verify=VERIFY)
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed")
    all_progress = await scene.all_progress()
    assert sum(progress.failed_again for progress in all_progress) == 3
    assert sum(progress.replayed for progress in all_progress) == 10
    assert sorted(await scene.open_letters()) == [2, 5, 7]
    assert adds_up(all_progress)


async def test_letters_passed_on_through_another_topic_are_recognised_by_their_origin(scene, monkeypatch):
    consume_during_waits(monkeypatch, Application(scene, {2, 5}, keeps_headers=False, passes_on=True))
    await scene.bury(*(letter(number) for number in range(10)))
    result = await scene.replay(verify=VERIFY)
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed")
    assert sum(progress.failed_again for progress in await scene.all_progress()) == 2


class Positions(set):
    """Published positions of a Replay."""

    def contains(self, topic, partition, offset):
        return (topic, partition, offset) in self


@pytest.mark.parametrize(
    ("envelope", "known"),
    [
        (Envelope(replay="uid-1"), True),
        (Envelope(replay="another"), False),
        (Envelope(hop=Origin("orders", 1, 5)), True),
        (Envelope(hop=Origin("orders-retry", 1, 5), origin=Origin("orders", 1, 5)), True),
        (Envelope(hop=Origin("orders-retry", 1, 5), origin=Origin("orders-retry", 1, 5)), False),
        (Envelope(hop=Origin("orders", 1, None)), False),
        (Envelope(hop=Origin(None, 1, 5)), False),
        (Envelope(), False),
    ],
)
def test_which_envelopes_are_recognised_as_failed_again(envelope, known):
    produced = Positions({("orders", 1, 5)})
    assert was_sent_by(envelope, "uid-1", produced) is known


@pytest.mark.parametrize("keeps_headers", [True, False])
async def test_verification_fails_the_replay_above_the_share(scene, monkeypatch, keeps_headers):
    consume_during_waits(monkeypatch, Application(scene, set(range(6)), keeps_headers))
    await scene.bury(*(letter(number) for number in range(10)))
    result = await scene.replay(verify=VERIFY)
    assert (result.code, result.reason) == (exit_status.FAILED, "FailureShareExceeded")
    all_progress = await scene.all_progress()
    assert {progress.phase for progress in all_progress} == {"Failed"}
    assert sum(progress.failed_again for progress in all_progress) == 6


async def test_a_failing_canary_fails_the_replay(scene, monkeypatch):
    consume_during_waits(monkeypatch, Application(scene, {0}, keeps_headers=False))
    await scene.bury(*(letter(number) for number in range(10)))
    result = await scene.replay(canary=CANARY)
    assert (result.code, result.reason) == (exit_status.FAILED, "FailureShareExceeded")
    assert await scene.numbers() == [0]
    assert sorted(await scene.open_letters()) == list(range(10))
    again = await scene.replay(canary=CANARY)
    assert again.reason == "FailureShareExceeded"
    assert await scene.numbers() == [0]


async def test_canary_steps_count_the_letters_of_all_partitions(scene, monkeypatch):
    sent = []

    async def wait(self, seconds):
        sent.append(len(await scene.numbers()))

    monkeypatch.setattr("deadletter.workers.replay.run.ReplayRun._sleep", wait)
    await scene.bury(*(letter(number) for number in range(3)), partition=0)
    await scene.bury(*(letter(number) for number in range(3, 9)), partition=1)
    result = await scene.replay(canary=CANARY)
    assert result.reason == "AllReplayed"
    assert list(dict.fromkeys(sent)) == [1, 4]
    assert sorted(await scene.numbers()) == list(range(9))


@pytest.mark.parametrize("on_another_broker", [True, False])
async def test_letters_that_fail_in_another_queue_are_found_in_its_dead_box(scene, monkeypatch, on_another_broker):
    other = await Scene(MemoryBroker(MemoryServer()) if on_another_broker else scene.broker, "bills").build()
    application = Application(other, {1, 3}, keeps_headers=True, partition=0)
    consume_during_waits(monkeypatch, application)
    await other.bury(letter(50, "bills"))  # it failed there before and was not sent by this Replay
    await scene.bury(*(letter(number) for number in range(4)))
    target = {"kind": "Queue", "box": "bills", "watched": [other.boxes.dead]}
    assignment = scene.assignment(target=target, verify=VERIFY)
    result = await scene.run(assignment, sink=BrokerSink(other.broker, assignment.uid) if on_another_broker else None)
    assert result.reason == "AllReplayed"
    all_progress = await scene.all_progress()
    assert sum(progress.failed_again for progress in all_progress) == 2
    assert await scene.open_letters() == []
    await scene.bury(*(letter(number) for number in (1, 3)))
    assignment = scene.assignment("uid-2", target=target, canary=CANARY)
    result = await scene.run(assignment, sink=BrokerSink(other.broker, assignment.uid) if on_another_broker else None)
    assert (result.code, result.reason) == (exit_status.FAILED, "FailureShareExceeded")
    assert len(await scene.open_letters()) == 1


async def test_letters_that_fail_into_the_box_of_a_route_are_counted(scene, monkeypatch):
    invalid = await Scene(scene.broker, "invalid").build()
    routed = Application(scene, {1, 3}, keeps_headers=True)
    routed.scene = replace(scene)
    monkeypatch.setattr(routed.scene, "bury", lambda letter, partition: invalid.bury(letter))
    consume_during_waits(monkeypatch, routed)
    await scene.bury(*(letter(number) for number in range(4)))
    target = {"kind": "Origin", "watched": [scene.boxes.dead, invalid.boxes.dead, "not-made-yet"]}
    result = await scene.replay(target=target, canary={"steps": [4], "wait": "1ms", "maxFailureShare": 25})
    assert result.reason == "FailureShareExceeded"
    assert sum(progress.failed_again for progress in await scene.all_progress()) == 2


async def test_a_replay_that_sent_nothing_does_not_wait(scene, monkeypatch):
    waits = []

    async def wait(self, seconds):
        waits.append(seconds)

    monkeypatch.setattr("deadletter.workers.replay.run.ReplayRun._sleep", wait)
    await scene.bury(*(letter(number) for number in range(3)))
    result = await scene.replay(select={"where": "payload.n > 9"}, canary=CANARY, verify=VERIFY)
    assert (result.reason, waits) == ("NothingMatched", [])


async def test_a_replay_stopped_in_a_canary_continues_there(scene, monkeypatch):
    stop = asyncio.Event()

    async def halt(self, seconds):
        stop.set()

    await scene.bury(*(letter(number) for number in range(9)))
    with monkeypatch.context() as patch:
        patch.setattr("deadletter.workers.replay.run.ReplayRun._sleep", halt)
        result = await scene.run(scene.assignment(canary=CANARY), stop=stop)
    assert result.code == exit_status.STOPPED
    assert await scene.numbers() == [0]
    assert {progress.phase for progress in await scene.all_progress()} == {"Waiting"}
    assert (await scene.replay(canary=CANARY)).code == exit_status.FINISHED
    assert sorted(await scene.numbers()) == list(range(9))


async def test_a_letter_that_fails_again_is_not_sent_twice_by_the_same_replay(scene, monkeypatch):
    application = Application(scene, set(range(4)), keeps_headers=True)
    original = type(scene.broker).describe

    async def describe(self, names):
        await application.consume()
        return await original(self, names)

    monkeypatch.setattr(type(scene.broker), "describe", describe)
    await scene.bury(*(letter(number) for number in range(4)), partition=0)
    await scene.bury(*(letter(number, origin="orders") for number in range(4, 8)), partition=1)
    await scene.replay(parallelism=1)
    assert sorted(await scene.numbers()) == list(range(8))


async def test_a_replayed_letter_that_failed_again_counts_its_replays(scene, monkeypatch):
    consume_during_waits(monkeypatch, Application(scene, {0}, keeps_headers=True))
    await scene.bury(letter(0))
    for round_ in range(1, 4):
        await scene.replay(f"uid-{round_}", verify={"window": "1ms", "maxFailureShare": 100})
        newest = (await scene.messages("orders.dlq"))[-1]
        assert read_headers(dict(newest.headers)).replays == round_
    result = await scene.replay("uid-4")
    all_progress = await scene.all_progress("uid-4")
    assert result.reason == "NothingMatched"
    assert [progress.skipped for progress in all_progress] == [{}, {"LoopCap": 1}]
