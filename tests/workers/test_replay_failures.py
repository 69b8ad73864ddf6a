"""Failures during a Replay on the memory broker, and how it ends."""

import asyncio

import pytest

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.types import CommitBatch
from deadletter.core.letters import Message
from deadletter.core.replay_progress import PartitionProgress, Span
from deadletter.workers import backoff, exit_status
from tests.workers.replay_scene import adds_up, letter


async def test_letters_with_too_many_replays_or_without_origin_stay(scene):
    nowhere = Message(b"key-3", b"{}", (("x-dlq-reason", b"broken"),))
    await scene.bury(letter(1, replays=3), letter(2), nowhere, letter(4, origin="gone"))
    await scene.replay()
    (progress,) = await scene.all_progress()
    assert progress.skipped == {"LoopCap": 1, "NoOrigin": 2}
    assert (progress.matched, progress.replayed) == (4, 1)
    assert await scene.open_letters() == [1, 3, 4]
    assert adds_up([progress])


async def test_a_missing_origin_fails_the_replay_if_the_spec_says_so(scene):
    await scene.bury(letter(1), letter(2, origin="gone"), letter(3))
    result = await scene.replay(onMissingOrigin="Fail")
    assert (result.code, result.reason) == (exit_status.FAILED, "OriginUnknown")
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.matched, progress.phase) == (1, 1, "Failed")
    assert await scene.open_letters() == [2, 3]
    assert (progress.reason, progress.message) == ("OriginUnknown", result.message)
    again = await scene.replay(onMissingOrigin="Fail")
    assert (again.code, again.message) == (exit_status.FAILED, result.message)
    assert result.message.startswith("Letter 0-1 does not say where it came from.")
    assert await scene.numbers() == [1]


async def test_a_letter_too_large_is_skipped(scene, server):
    letters = [letter(number) for number in range(40)]
    letters[17].value = b"x" * 2_000
    letters[31].value = b"x" * 2_000
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 1_000
    await scene.replay()
    (progress,) = await scene.all_progress()
    assert (progress.scanned, progress.matched, progress.replayed, progress.skipped) == (40, 40, 38, {"TooLarge": 2})
    assert await scene.open_letters() == [17, 31]
    assert await scene.numbers() == [number for number in range(40) if number not in (17, 31)]


async def test_a_letter_too_large_fails_the_replay_if_the_spec_says_so(scene, server):
    letters = [letter(number) for number in range(9)]
    letters[4].value = b"x" * 2_000
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 1_000
    result = await scene.replay(onTooLarge="Fail")
    assert (result.code, result.reason) == (exit_status.FAILED, "TooLarge")
    assert await scene.numbers() == [0, 1, 2, 3]
    assert adds_up(await scene.all_progress())


async def test_letters_of_the_window_deleted_by_retention_are_counted_and_fail_the_replay(scene, server):
    await scene.bury(*(letter(number) for number in range(6)))
    stop = asyncio.Event()
    assignment = scene.assignment(rate={"maxInFlight": 4})
    stop.set()
    assert (await scene.run(assignment, stop=stop)).code == exit_status.STOPPED
    frozen = await scene.run(scene.assignment(select={"limit": 1}, uid="other"))
    assert frozen.code == 0
    async with scene.broker.partition_writer("orders.dlq", "orders.dlq.ledger", 0, "uid-1") as writer:
        await writer.commit(CommitBatch(PartitionProgress(Span(0, 0, 6), 1, 1)))
    for offset in (0, 1, 2):
        del server.boxes["orders.dlq"].partitions[0][offset]
    result = await scene.run(assignment)
    assert (result.code, result.reason) == (exit_status.FAILED, "WindowExpired")
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.skipped) == (3, {"Expired": 2})
    assert adds_up([progress])


BROKER_DOWN = BrokerUnreachable("no broker answers")


@pytest.mark.parametrize("down", [True, False])
async def test_a_broker_that_comes_back_is_waited_for(scene, server, monkeypatch, down):
    """The broker is away during a commit, or from the start, for longer than other errors are retried."""
    waits = []

    async def come_back(stop, seconds):
        waits.append(seconds)
        if len(waits) == 3 * backoff.MAX_TRIES:
            server.refuse.clear()
            server.down = None

    for module in ("run", "main"):
        monkeypatch.setattr(f"deadletter.workers.replay.{module}.wait_for_event", come_back)
    await scene.bury(letter(1))
    server.down = BROKER_DOWN if down else None
    server.refuse["orders"] = BROKER_DOWN
    assert (await scene.replay()).code == exit_status.FINISHED
    assert await scene.numbers() == [1]
    assert max(waits) == backoff.MAX_DELAY_S


@pytest.mark.parametrize("down", [True, False])
async def test_a_broker_that_stays_away_ends_the_pod_and_another_goes_on(scene, server, monkeypatch, down):
    monkeypatch.setattr(backoff, "INITIAL_DELAY_S", 0.001)
    monkeypatch.setattr(backoff, "MAX_OUTAGE_TRIES", 4)
    await scene.bury(letter(1))
    server.down = BROKER_DOWN if down else None
    server.refuse["orders"] = BROKER_DOWN
    result = await scene.replay()
    assert (result.code, result.reason) == (exit_status.TRY_AGAIN, "BrokerUnreachable")
    server.down = None
    server.refuse.clear()
    assert (await scene.replay()).code == exit_status.FINISHED
    assert await scene.numbers() == [1]


async def test_a_replay_that_waits_for_its_broker_can_be_stopped(scene, server):
    server.down = BROKER_DOWN
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, stop.set)
    assert (await scene.run(scene.assignment(), stop=stop)).code == exit_status.STOPPED


async def test_a_second_writer_fences_the_first(scene):
    await scene.bury(*(letter(number) for number in range(300)))

    async def steal(self, wanted):
        async with scene.broker.partition_writer("orders.dlq", "orders.dlq.ledger", 0, "thief"):
            return wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deadletter.workers.rate_limit.TokenBucket.acquire", steal)
        result = await scene.replay()
    assert (result.code, result.reason) == (exit_status.FENCED, "Fenced")
    assert await scene.numbers() == []


async def test_a_stop_saves_the_progress_and_the_next_pod_continues(scene, monkeypatch):
    monkeypatch.setattr("deadletter.workers.replay.partition.MAX_BATCH_LETTERS", 10)
    await scene.bury(*(letter(number) for number in range(100)))
    stop = asyncio.Event()
    batches = []

    class Stopping:
        async def send(self, results):
            batches.append(len(results))
            if len(batches) == 3:
                stop.set()

    result = await scene.run(scene.assignment(), stop=stop, sink=Stopping())
    assert result.code == exit_status.STOPPED
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.next, progress.phase) == (30, 30, "Running")
    assert (await scene.replay()).code == exit_status.FINISHED
    assert await scene.numbers() == list(range(30, 100))
    assert (await scene.all_progress())[0].replayed == 100
