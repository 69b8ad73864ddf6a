"""Replays on a real Kafka and a real Redis: whole, killed, fenced, previewed, restored, across brokers."""

import asyncio
import signal
from pathlib import Path

import pytest

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.types import MonitoredBox
from deadletter.core.headers import read_headers
from deadletter.wall_clock import now_ms
from deadletter.workers import backoff, exit_status
from deadletter.workers.replay.sinks import BrokerSink
from tests.workers.redrive_stage import RedriveStage
from tests.workers.replay_pods import (
    TIMEOUT_S,
    ReplayPod,
    assert_all_replayed_once,
    build_scene,
    bury_numbers,
    kind,
    scene,
    stack,
    wait_for_arrivals,
)
from tests.workers.replay_scene import Application, Scene, adds_up, consume_during_waits

pytestmark = pytest.mark.server

__all__ = ["kind", "scene", "stack"]  # fixtures


async def test_a_whole_replay_arrives_once_in_order_with_exact_progress(scene):
    await bury_numbers(scene, 1_200)
    result = await scene.replay()
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed")
    assert await scene.numbers() == list(range(1_200))
    (progress,) = await scene.all_progress()
    assert (progress.scanned, progress.matched, progress.replayed, progress.phase) == (1_200, 1_200, 1_200, "Finished")
    assert await scene.open_letters() == []


async def test_a_replay_of_a_preview_takes_exactly_its_letters_and_reports_each(scene):
    await bury_numbers(scene, 40)
    await scene.replay("dry", mode="DryRun", select={"where": "payload.n % 4 == 0"})
    (dry,) = await scene.all_progress("dry")
    assert (dry.matched, dry.replayed) == (10, 0)
    assert await scene.numbers() == []
    await scene.replay("one", select={"ids": [dry.samples[1]]})
    await bury_numbers(scene, 4, first=40)
    await scene.replay("apply", preview_uid="dry")
    (progress,) = await scene.all_progress("apply")
    assert (progress.matched, progress.replayed, sum(progress.skipped.values())) == (10, 9, 1)
    assert sorted(await scene.numbers()) == list(range(0, 40, 4))
    assert adds_up([progress])


async def test_archived_letters_come_back_and_discarded_ones_do_not(scene):
    await bury_numbers(scene, 9)
    await scene.replay("archive", action="Archive", select={"where": "payload.n < 3"})
    await scene.replay("discard", action="Discard", select={"where": "payload.n < 6"})
    assert await scene.open_letters() == [6, 7, 8]
    await scene.replay("restore", select={"state": "Archived"})
    assert await scene.numbers() == [0, 1, 2]
    (progress,) = await scene.all_progress("restore")
    assert (progress.matched, progress.replayed) == (3, 3)
    again = await scene.replay("again", select={"state": "Archived"})
    assert again.reason == "NothingMatched"


@pytest.mark.parametrize("keeps_headers", [True, False])
async def test_letters_that_fail_again_are_counted_exactly(scene, monkeypatch, keeps_headers):
    application = Application(scene, {1, 4}, keeps_headers, partition=0)
    consume_during_waits(monkeypatch, application)
    await bury_numbers(scene, 8)
    result = await scene.replay(verify={"window": "1ms", "maxFailureShare": 50})
    assert result.reason == "AllReplayed"
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.failed_again, progress.phase) == (8, 2, "Finished")
    assert sorted(await scene.open_letters()) == [1, 4]


async def test_a_failing_canary_fails_the_replay(scene, monkeypatch):
    consume_during_waits(monkeypatch, Application(scene, set(range(9)), keeps_headers=False, partition=0))
    await bury_numbers(scene, 9)
    result = await scene.replay(canary={"steps": [2], "wait": "1ms", "maxFailureShare": 10})
    assert (result.code, result.reason) == (exit_status.FAILED, "FailureShareExceeded")
    assert await scene.numbers() == [0, 1]
    assert sorted(await scene.open_letters()) == list(range(9))


async def test_a_redrive_counts_its_rounds_without_our_headers(scene):
    application = Application(scene, {1}, keeps_headers=False, partition=0)
    stage = RedriveStage(scene)
    await bury_numbers(scene, 2)
    sent = []
    for _ in range(4):
        sent.append(await stage.run_after(60))
        await application.consume()
        stage.restart()
    assert sent == [2, 1, 0, 0]
    assert await scene.open_letters() == [1]


async def test_to_the_retry_box_letters_are_parked_due_now(scene):
    await bury_numbers(scene, 5)
    result = await scene.replay(target={"kind": "Retry"})
    assert result.reason == "AllReplayed"
    monitored = MonitoredBox(scene.boxes.dead, scene.boxes.ledger, scene.boxes.retry)
    monitor = scene.broker.monitor()
    async with asyncio.timeout(TIMEOUT_S):
        stats = None
        while stats is None or not stats.caught_up:
            stats = (await monitor.sweep([monitored], now_ms()))[scene.boxes.dead]
    await monitor.close()
    assert (stats.depth, stats.parked) == (0, 5)
    assert [progress.replayed for progress in stats.progress["uid-1"]] == [5]


async def kill_run(scene: Scene, folder: Path, letters: int, at: list[int]) -> None:
    pod = ReplayPod(folder, scene, rate={"maxInFlight": max(4, letters // 100)})
    for share in at:
        process = await pod.start()
        await wait_for_arrivals(scene, letters * share // 100, process)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
    assert await pod.run_to_end() == 0, (folder / "log").read_text()[-2_000:]
    assert pod.termination_message["reason"] == "AllReplayed"


async def test_a_killed_replayer_loses_and_repeats_nothing(scene, tmp_path):
    await bury_numbers(scene, 3_000)
    await kill_run(scene, tmp_path, 3_000, [10, 60])
    await assert_all_replayed_once(scene, 3_000)


@pytest.mark.kill
async def test_a_replayer_killed_at_every_tenth_loses_and_repeats_nothing(scene, tmp_path):
    await bury_numbers(scene, 100_000)
    await kill_run(scene, tmp_path, 100_000, list(range(5, 100, 10)))
    await assert_all_replayed_once(scene, 100_000)


async def test_a_stopped_replayer_commits_its_batch_and_the_next_continues(scene, tmp_path):
    await bury_numbers(scene, 600)
    (tmp_path / "live.json").write_text('{"rate": {"perSecond": 50}}')
    pod = ReplayPod(tmp_path, scene)
    process = await pod.start()
    await wait_for_arrivals(scene, 10, process)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == exit_status.STOPPED
    assert pod.termination_message["reason"] == "Stopped"
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.phase) == (len(await scene.numbers()), "Running")
    (tmp_path / "live.json").unlink()
    assert await pod.run_to_end() == 0
    await assert_all_replayed_once(scene, 600)


async def test_the_next_replay_sends_what_a_deleted_one_had_not_sent(scene, tmp_path):
    await bury_numbers(scene, 600)
    (tmp_path / "live.json").write_text('{"rate": {"perSecond": 50}}')
    process = await ReplayPod(tmp_path, scene).start()
    await wait_for_arrivals(scene, 10, process)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == exit_status.STOPPED
    sent = len(await scene.numbers())
    await scene.broker.delete_replay_records(scene.boxes.ledger, "uid-1")
    assert await scene.open_letters() == list(range(sent, 600))
    await scene.replay("uid-2")
    assert await scene.numbers() == list(range(600))
    assert [progress.replayed for progress in await scene.all_progress("uid-2")] == [600 - sent]


async def test_a_changed_rate_applies_while_it_runs(scene, tmp_path):
    await bury_numbers(scene, 2_000)
    live = tmp_path / "live.json"
    live.write_text('{"rate": {"perSecond": 1}}')
    pod = ReplayPod(tmp_path, scene)
    process = await pod.start()
    await wait_for_arrivals(scene, 1, process)
    live.write_text('{"rate": {"perSecond": 1000000}}')
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
    await assert_all_replayed_once(scene, 2_000)


async def test_a_zombie_is_fenced(scene, tmp_path):
    await bury_numbers(scene, 400)
    slow, fast = tmp_path / "slow", tmp_path / "fast"
    slow.mkdir()
    fast.mkdir()
    (slow / "live.json").write_text('{"rate": {"perSecond": 20}}')
    zombie, successor = ReplayPod(slow, scene), ReplayPod(fast, scene)
    process = await zombie.start()
    await wait_for_arrivals(scene, 5, process)
    process.send_signal(signal.SIGSTOP)
    try:
        assert await successor.run_to_end() == 0
    finally:
        process.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == exit_status.FENCED
    assert zombie.termination_message["reason"] == "Fenced"
    await assert_all_replayed_once(scene, 400)


@pytest.mark.parametrize(("here", "there"), [("kafka", "redis"), ("redis", "kafka")])
async def test_letters_cross_from_one_broker_to_the_other(here, there, request, stack, tmp_path):
    near, far = await build_scene(here, request, stack), await build_scene(there, request, stack)
    await bury_numbers(near, 30)
    target = {"kind": "Queue", "box": far.name, "broker": far.connection}
    pod = ReplayPod(tmp_path, near, target=target)
    assert await pod.run_to_end() == 0, (tmp_path / "log").read_text()[-2_000:]
    assert sorted(await far.numbers()) == list(range(30))
    assert await near.open_letters() == []
    known = read_headers(dict((await far.messages())[0].headers))
    assert (known.replay, known.replays) == ("uid-1", 1)
    assert known.id is not None


class LostResponseSink(BrokerSink):
    """A sink whose first batch arrives while the response is lost."""

    losses = 1

    async def send(self, results):
        await super().send(results)
        self.losses -= 1
        if self.losses == 0:
            raise BrokerUnreachable("the response was lost")


@pytest.mark.parametrize(("here", "there"), [("kafka", "redis"), ("redis", "kafka")])
async def test_letters_sent_but_not_settled_are_sent_again_with_the_same_id(here, there, request, stack, monkeypatch):
    monkeypatch.setattr(backoff, "INITIAL_DELAY_S", 0.01)
    near, far = await build_scene(here, request, stack), await build_scene(there, request, stack)
    await bury_numbers(near, 5)
    assignment = near.assignment(target={"kind": "Queue", "box": far.name})
    result = await near.run(assignment, sink=LostResponseSink(far.broker, assignment.uid))
    assert result.reason == "AllReplayed"
    ids = [read_headers(dict(message.headers)).id for message in await far.messages()]
    assert sorted(ids) == sorted([*set(ids)] * (1 if there == "redis" else 2))
    assert len(set(ids)) == 5
    assert [(progress.matched, progress.replayed) for progress in await near.all_progress()] == [(5, 5)]


async def test_letters_at_the_offsets_of_earlier_ones_cross_too(request, stack):
    """As in a topic that was deleted and created again, or in one of the same name on a third broker."""
    near, far = await build_scene("kafka", request, stack), await build_scene("redis", request, stack)
    await bury_numbers(near, 3)
    for uid in ("uid-1", "uid-2"):
        assignment = near.assignment(uid, target={"kind": "Queue", "box": far.name})
        assert (await near.run(assignment, sink=BrokerSink(far.broker, uid))).reason == "AllReplayed"
        await near.broker.reset_ledger(near.boxes.dead, near.boxes.ledger)
    assert await far.numbers() == [0, 1, 2, 0, 1, 2]
