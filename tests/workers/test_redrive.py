"""The redriver on the memory broker: rounds, backoff, limits, pauses."""

import asyncio

import pytest
from structlog.testing import capture_logs

from deadletter.brokers.memory import MemoryBroker
from deadletter.brokers.memory.partition_writer import MemoryPartitionWriter
from deadletter.brokers.types import CommitBatch
from deadletter.core.headers import read_headers
from deadletter.core.letters import Category, Failure, Message
from deadletter.core.replay_progress import PartitionProgress
from tests.workers.redrive_stage import POLICY, START, RedriveStage
from tests.workers.replay_scene import Application, Scene, letter


@pytest.fixture
async def scene(server):
    return await Scene(MemoryBroker(server), partitions=2).build()


async def test_a_letter_goes_back_after_its_backoff_and_not_before(scene):
    stage = RedriveStage(scene)
    await scene.bury(letter(1))
    assert await stage.run_after(5) == 0
    with capture_logs() as lines:
        assert await stage.run_after(6) == 1
    assert [(line["event"], line["letters"], line["round"]) for line in lines] == [("letters sent back", 1, 1)]
    assert await scene.numbers() == [1]
    assert await scene.open_letters() == []
    assert await stage.run_after(60) == 0
    (message,) = await scene.messages()
    known = read_headers(dict(message.headers))
    assert (known.replay, known.replays) == ("redrive-1", 1)


@pytest.mark.parametrize("keeps_headers", [True, False])
async def test_rounds_are_counted_even_when_the_application_drops_our_headers(scene, keeps_headers):
    stage = RedriveStage(scene)
    application = Application(scene, {7}, keeps_headers)
    await scene.bury(letter(7))
    sent = []
    for _ in range(6):
        sent.append(await stage.run_after(30))
        await application.consume()
        stage.restart()
    assert sum(sent) == 2
    assert await scene.open_letters() == [7]


async def test_rounds_are_counted_when_the_application_passes_letters_on_and_drops_our_headers(scene):
    stage = RedriveStage(scene)
    application = Application(scene, {7}, keeps_headers=False, passes_on=True)
    await scene.bury(letter(7))
    sent = []
    for _ in range(6):
        sent.append(await stage.run_after(30))
        await application.consume()
    assert sum(sent) == 2
    assert await scene.open_letters() == [7]


async def sent_until_exhausted(stage, scene) -> int:
    """Return how often a letter is sent back that the application always refuses, dropping our headers."""
    application = Application(scene, {7}, keeps_headers=False)
    await scene.bury(letter(7))
    sent = 0
    for _ in range(12):
        sent += await stage.run_after(30)
        await application.consume()
    return sent


async def test_rounds_are_counted_as_far_as_a_rule_allows_more_than_the_policy(scene):
    rule = {"name": "patient", "match": "true", "action": "Retry", "maxAttempts": 6}
    stage = RedriveStage(scene, policy={**POLICY, "rules": [rule]})
    assert await sent_until_exhausted(stage, scene) == 5
    assert await scene.open_letters() == [7]


async def test_rounds_beyond_the_last_named_one_end_as_well(scene, monkeypatch):
    monkeypatch.setattr("deadletter.workers.redrive.rounds.MAX_NAMED_ROUND", 4)
    stage = RedriveStage(scene, policy={**POLICY, "maxAttempts": 9})
    assert await sent_until_exhausted(stage, scene) == 4
    assert await scene.open_letters() == [7]


async def test_letters_that_are_not_retryable_or_not_selected_stay(scene):
    stage = RedriveStage(scene, where="payload.n != 3")
    invalid = Failure("Invalid", "no such field", Category.Validation)
    await scene.bury(letter(1), letter(2, failure=invalid), letter(3))
    assert await stage.run_after(60) == 1
    assert await scene.open_letters() == [2, 3]


async def test_a_letter_whose_return_could_not_be_recognised_stays(scene):
    stage = RedriveStage(scene, origin="orders")
    await scene.bury(Message(b"key-1", b"{}", (("x-error", b"broken"),), START))
    assert await stage.run_after(60) == 0
    assert await scene.open_letters() == [1]


async def test_a_letter_too_large_for_its_origin_stays_and_others_are_sent(scene, server):
    stage = RedriveStage(scene)
    letters = [letter(number) for number in range(9)]
    letters[4].value = b"x" * 2_000
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 1_000
    assert await stage.run_after(60) == 8
    assert await scene.numbers() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert await scene.open_letters() == [4]


async def test_large_letters_are_sent_in_batches_of_bounded_size(scene, monkeypatch):
    batches, commit = [], MemoryPartitionWriter.commit

    async def record(writer: MemoryPartitionWriter, batch: CommitBatch) -> None:
        batches.append([one.message.size >> 20 for one in batch.publications])
        await commit(writer, batch)

    monkeypatch.setattr(MemoryPartitionWriter, "commit", record)
    letters = [letter(number) for number in range(8)]
    for number, size in enumerate((3, 3, 3, 1, 9, 1, 6, 2)):
        letters[number].value = b"x" * (size << 20)
    await scene.bury(*letters)
    assert await RedriveStage(scene).run_after(60) == 8
    assert batches == [[3, 3], [3, 1], [9], [1, 6], [2]]
    assert await scene.numbers() == list(range(8))
    assert await scene.open_letters() == []
    (progress,) = (await scene.broker.replay_progress(scene.boxes.ledger))["redrive-1"]
    assert (progress.matched, progress.replayed, progress.next) == (8, 8, 8)


async def test_only_the_large_letter_that_its_origin_refuses_stays(scene, server):
    letters = [letter(number) for number in range(6)]
    for one, size in zip(letters, (3, 3, 3, 9, 3, 3), strict=True):
        one.value = b"x" * (size << 20)
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 4 << 20
    assert await RedriveStage(scene).run_after(60) == 5
    assert await scene.numbers() == [0, 1, 2, 4, 5]
    assert await scene.open_letters() == [3]


async def test_a_pause_by_the_operator_holds_letters_back(scene):
    stage = RedriveStage(scene)
    stage.gate = "Suspended"
    await scene.bury(letter(1))
    assert await stage.run_after(60) == 0
    assert stage.redriver.pause_reason == "Suspended"
    stage.gate = ""
    assert await stage.run_after(0) == 1


async def test_a_spent_error_budget_holds_letters_back(scene):
    stage = RedriveStage(scene, policy={**POLICY, "errorBudget": {"letters": 2, "per": "1m"}})
    await scene.bury(*(letter(number) for number in range(3)))
    assert await stage.run_after(30) == 0
    assert stage.redriver.pause_reason == "ErrorBudgetSpent"
    assert await stage.run_after(60) == 3


async def test_letters_returning_faster_than_they_leave_pause_the_redrive(scene):
    stage = RedriveStage(scene, policy={**POLICY, "maxAttempts": 10})
    await scene.bury(*(letter(number, replays=1) for number in range(25)))
    assert await stage.run_after(30) == 0
    assert stage.redriver.pause_reason == "FailureShareExceeded"
    assert await stage.run_after(61) == 25


async def test_the_pause_is_in_the_box_stats_until_it_ends(scene):
    stage = RedriveStage(scene, policy={**POLICY, "errorBudget": {"letters": 2, "per": "1m"}})
    await scene.bury(*(letter(number) for number in range(3)))
    await stage.run_after(30)
    (status,) = await stage.reported()
    assert (status.paused, status.at) == ("ErrorBudgetSpent", stage.now)
    assert "error budget" in status.message
    await stage.run_after(29)
    assert await stage.reported() == (status,)
    await stage.run_after(31)
    assert await stage.reported() == ()


async def test_the_pause_is_reported_again_before_it_expires_and_withdrawn_at_the_end(scene):
    stage = RedriveStage(scene, policy={**POLICY, "errorBudget": {"letters": 2, "per": "10m"}})
    await scene.bury(*(letter(number) for number in range(3)))
    await stage.run_after(1)
    first = stage.now
    await stage.run_after(29)
    assert [status.at for status in await stage.reported()] == [first]
    await stage.run_after(1)
    assert [status.at for status in await stage.reported()] == [stage.now]
    stage.stop.set()
    await stage.redriver.run()
    assert await stage.reported() == ()


async def test_it_pauses_for_a_running_replay_before_the_operator_tells_it(scene):
    stage = RedriveStage(scene)
    await scene.bury(letter(1))
    span = (await scene.broker.window(scene.boxes.dead))[0]
    progress = PartitionProgress(span, stage.now, 0, updated_at=stage.now + 50_000)
    async with scene.broker.partition_writer(scene.boxes.dead, scene.boxes.ledger, 0, "a-replay") as writer:
        await writer.commit(CommitBatch(progress))
        assert await stage.run_after(60) == 0
        assert (stage.redriver.pause_reason, await stage.reported()) == ("Queued", ())
        await writer.commit(CommitBatch(progress.evolve(phase="Finished")))
    assert await stage.run_after(1) == 1


async def test_an_abandoned_replay_does_not_pause_it_without_end(scene):
    stage = RedriveStage(scene)
    await scene.bury(letter(1))
    span = (await scene.broker.window(scene.boxes.dead))[0]
    async with scene.broker.partition_writer(scene.boxes.dead, scene.boxes.ledger, 0, "a-replay") as writer:
        await writer.commit(CommitBatch(PartitionProgress(span, stage.now, 0, updated_at=stage.now)))
    assert await stage.run_after(60) == 0
    assert await stage.run_after(180) == 1


async def test_letters_that_a_replay_settled_meanwhile_are_not_sent(scene):
    stage = RedriveStage(scene)
    await scene.bury(letter(1), letter(2))
    await stage.run_after(1)
    await scene.replay(select={"ids": ["0-0"]})
    assert await stage.run_after(60) == 1
    assert sorted(await scene.numbers()) == [1, 2]


async def test_letters_that_a_replay_sent_while_they_waited_are_not_sent(scene):
    stage = RedriveStage(scene)
    await scene.bury(letter(1), letter(2))
    await stage.run_after(1)
    await scene.replay()
    assert await stage.run_after(60) == 0
    assert await scene.numbers() == [1, 2]


async def test_it_ends_when_stopped(scene):
    stage = RedriveStage(scene)
    task = asyncio.create_task(stage.redriver.run())
    await asyncio.sleep(0)
    stage.stop.set()
    assert (await asyncio.wait_for(task, 60)).code == 143
