"""A standing redriver on the memory broker: rounds, backoff, limits, pauses."""

import asyncio

import pytest
from structlog.testing import capture_logs

from deadletter.api.assignments import RedriveAssignment
from deadletter.brokers.memory import MemoryBroker
from deadletter.brokers.memory.partition_writer import MemoryPartitionWriter
from deadletter.brokers.types import CommitBatch, MonitoredBox
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.headers import read_headers
from deadletter.core.letters import Category, Failure, Message
from deadletter.core.replay_progress import PartitionProgress
from deadletter.workers.redrive.redriver import Redriver
from tests.workers.replaying import Scene, letter
from tests.workers.test_replay_returns import Application

START = 1_700_000_000_000
POLICY = {"maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "10s", "max": "10s"}}


class Stage:
    """A scene, a clock that a test moves, and a redriver that can be restarted."""

    def __init__(self, scene: Scene, **told) -> None:
        self.scene, self.now, self.gate, self.stop = scene, START, "", asyncio.Event()
        self.told = RedriveAssignment.model_validate(
            {
                "namespace": "test",
                "queue": "orders",
                "uid": "queue-1",
                "generation": 1,
                "broker": scene.connection,
                "boxes": scene.boxes.model_dump(),
                "policy": POLICY,
                **told,
            }
        )
        self.restart()

    def restart(self) -> None:
        self.redriver = Redriver(self.told, self.scene.broker, self.stop, lambda: self.now, lambda: self.gate)

    async def after(self, seconds: int) -> int:
        self.now += seconds * 1_000
        return await self.redriver.run_once()

    async def words(self) -> tuple[WorkerStatus, ...]:
        """What the operator's sweep reads."""
        watched = MonitoredBox(self.scene.boxes.dead, self.scene.boxes.ledger)
        return (await self.scene.broker.monitor().sweep([watched], self.now))[watched.dead].couriers


@pytest.fixture
async def scene(server):
    return await Scene(MemoryBroker(server), partitions=2).build()


async def test_a_letter_goes_back_after_its_backoff_and_not_before(scene):
    stage = Stage(scene)
    await scene.bury(letter(1))
    assert await stage.after(5) == 0
    with capture_logs() as said:
        assert await stage.after(6) == 1
    assert [(line["event"], line["letters"], line["round"]) for line in said] == [("letters sent back", 1, 1)]
    assert await scene.numbers() == [1]
    assert await scene.open_letters() == []
    assert await stage.after(60) == 0
    (message,) = await scene.messages()
    known = read_headers(dict(message.headers))
    assert (known.replay, known.replays) == ("redrive-1", 1)


@pytest.mark.parametrize("keeps_headers", [True, False])
async def test_rounds_are_counted_even_when_the_application_drops_our_headers(scene, keeps_headers):
    stage = Stage(scene)
    application = Application(scene, {7}, keeps_headers)
    await scene.bury(letter(7))
    sent = []
    for _ in range(6):
        sent.append(await stage.after(30))
        await application.consume()
        stage.restart()
    assert sum(sent) == 2
    assert await scene.open_letters() == [7]


async def test_rounds_are_counted_when_the_application_passes_letters_on_and_drops_our_headers(scene):
    stage = Stage(scene)
    application = Application(scene, {7}, keeps_headers=False, passes_on=True)
    await scene.bury(letter(7))
    sent = []
    for _ in range(6):
        sent.append(await stage.after(30))
        await application.consume()
    assert sum(sent) == 2
    assert await scene.open_letters() == [7]


async def sent_until_exhausted(stage, scene) -> int:
    """How often one letter goes back that an application refuses each time, without our headers."""
    application = Application(scene, {7}, keeps_headers=False)
    await scene.bury(letter(7))
    sent = 0
    for _ in range(12):
        sent += await stage.after(30)
        await application.consume()
    return sent


async def test_rounds_are_counted_as_far_as_a_rule_allows_more_than_the_policy(scene):
    rule = {"name": "patient", "match": "true", "action": "Retry", "maxAttempts": 6}
    stage = Stage(scene, policy={**POLICY, "rules": [rule]})
    assert await sent_until_exhausted(stage, scene) == 5
    assert await scene.open_letters() == [7]


async def test_more_rounds_than_have_names_of_their_own_come_to_an_end(scene, monkeypatch):
    monkeypatch.setattr("deadletter.workers.redrive.rounds.MAX_NAMED_ROUND", 4)
    stage = Stage(scene, policy={**POLICY, "maxAttempts": 9})
    assert await sent_until_exhausted(stage, scene) == 4
    assert await scene.open_letters() == [7]


async def test_letters_that_are_not_retryable_or_not_selected_stay(scene):
    stage = Stage(scene, where="payload.n != 3")
    invalid = Failure("Invalid", "no such field", Category.Validation)
    await scene.bury(letter(1), letter(2, failure=invalid), letter(3))
    assert await stage.after(60) == 1
    assert await scene.open_letters() == [2, 3]


async def test_a_letter_whose_return_could_not_be_recognised_stays(scene):
    stage = Stage(scene, origin="orders")
    await scene.bury(Message(b"key-1", b"{}", (("x-error", b"broken"),), START))
    assert await stage.after(60) == 0
    assert await scene.open_letters() == [1]


async def test_a_letter_too_large_for_its_origin_stays_and_hinders_no_other(scene, server):
    stage = Stage(scene)
    letters = [letter(number) for number in range(9)]
    letters[4].value = b"x" * 2_000
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 1_000
    assert await stage.after(60) == 8
    assert await scene.numbers() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert await scene.open_letters() == [4]


async def test_letters_that_are_large_together_go_back_a_few_at_a_time(scene, monkeypatch):
    steps, commit = [], MemoryPartitionWriter.commit

    async def counted(mover: MemoryPartitionWriter, step: CommitBatch) -> None:
        steps.append([one.message.size >> 20 for one in step.publications])
        await commit(mover, step)

    monkeypatch.setattr(MemoryPartitionWriter, "commit", counted)
    letters = [letter(number) for number in range(8)]
    for number, size in enumerate((3, 3, 3, 1, 9, 1, 6, 2)):
        letters[number].value = b"x" * (size << 20)
    await scene.bury(*letters)
    assert await Stage(scene).after(60) == 8
    assert steps == [[3, 3], [3, 1], [9], [1, 6], [2]]
    assert await scene.numbers() == list(range(8))
    assert await scene.open_letters() == []
    (tally,) = (await scene.broker.replay_progress(scene.boxes.ledger))["redrive-1"]
    assert (tally.matched, tally.replayed, tally.next) == (8, 8, 8)


async def test_of_large_letters_only_the_one_that_its_origin_refuses_stays(scene, server):
    letters = [letter(number) for number in range(6)]
    for one, size in zip(letters, (3, 3, 3, 9, 3, 3), strict=True):
        one.value = b"x" * (size << 20)
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 4 << 20
    assert await Stage(scene).after(60) == 5
    assert await scene.numbers() == [0, 1, 2, 4, 5]
    assert await scene.open_letters() == [3]


async def test_a_shut_gate_holds_letters_back(scene):
    stage = Stage(scene)
    stage.gate = "Suspended"
    await scene.bury(letter(1))
    assert await stage.after(60) == 0
    assert stage.redriver.pause_reason == "Suspended"
    stage.gate = ""
    assert await stage.after(0) == 1


async def test_a_spent_error_budget_holds_letters_back(scene):
    stage = Stage(scene, policy={**POLICY, "errorBudget": {"letters": 2, "per": "1m"}})
    await scene.bury(*(letter(number) for number in range(3)))
    assert await stage.after(30) == 0
    assert stage.redriver.pause_reason == "ErrorBudgetSpent"
    assert await stage.after(60) == 3


async def test_letters_returning_faster_than_they_leave_stop_the_redrive(scene):
    stage = Stage(scene, policy={**POLICY, "maxAttempts": 10})
    await scene.bury(*(letter(number, replays=1) for number in range(25)))
    assert await stage.after(30) == 0
    assert stage.redriver.pause_reason == "FailureShareExceeded"
    assert await stage.after(61) == 25


async def test_why_it_waits_is_in_the_reading_until_it_no_longer_does(scene):
    stage = Stage(scene, policy={**POLICY, "errorBudget": {"letters": 2, "per": "1m"}})
    await scene.bury(*(letter(number) for number in range(3)))
    await stage.after(30)
    (word,) = await stage.words()
    assert (word.paused, word.at) == ("ErrorBudgetSpent", stage.now)
    assert "error budget" in word.message
    await stage.after(29)
    assert await stage.words() == (word,)
    await stage.after(31)
    assert await stage.words() == ()


async def test_a_word_is_repeated_before_it_grows_old_and_taken_back_at_the_end(scene):
    stage = Stage(scene, policy={**POLICY, "errorBudget": {"letters": 2, "per": "10m"}})
    await scene.bury(*(letter(number) for number in range(3)))
    await stage.after(1)
    first = stage.now
    await stage.after(29)
    assert [word.at for word in await stage.words()] == [first]
    await stage.after(1)
    assert [word.at for word in await stage.words()] == [stage.now]
    stage.stop.set()
    await stage.redriver.run()
    assert await stage.words() == ()


async def test_it_makes_way_for_a_replay_before_the_gate_tells(scene):
    stage = Stage(scene)
    await scene.bury(letter(1))
    span = (await scene.broker.window(scene.boxes.dead))[0]
    tally = PartitionProgress(span, stage.now, 0, updated_at=stage.now + 50_000)
    async with scene.broker.partition_writer(scene.boxes.dead, scene.boxes.ledger, 0, "a-replay") as mover:
        await mover.commit(CommitBatch(tally))
        assert await stage.after(60) == 0
        assert (stage.redriver.pause_reason, await stage.words()) == ("Queued", ())
        await mover.commit(CommitBatch(tally.evolve(phase="Finished")))
    assert await stage.after(1) == 1


async def test_a_replay_that_was_left_alone_holds_nothing_back_for_ever(scene):
    stage = Stage(scene)
    await scene.bury(letter(1))
    span = (await scene.broker.window(scene.boxes.dead))[0]
    async with scene.broker.partition_writer(scene.boxes.dead, scene.boxes.ledger, 0, "a-replay") as mover:
        await mover.commit(CommitBatch(PartitionProgress(span, stage.now, 0, updated_at=stage.now)))
    assert await stage.after(60) == 0
    assert await stage.after(180) == 1


async def test_a_replay_in_between_is_seen(scene):
    stage = Stage(scene)
    await scene.bury(letter(1), letter(2))
    await stage.after(1)
    await scene.replay(select={"ids": ["0-0"]})
    assert await stage.after(60) == 1
    assert sorted(await scene.numbers()) == [1, 2]


async def test_letters_that_a_replay_took_while_they_waited_are_left_alone(scene):
    stage = Stage(scene)
    await scene.bury(letter(1), letter(2))
    await stage.after(1)
    await scene.replay()
    assert await stage.after(60) == 0
    assert await scene.numbers() == [1, 2]


async def test_it_stops_when_told(scene):
    stage = Stage(scene)
    task = asyncio.create_task(stage.redriver.run())
    await asyncio.sleep(0)
    stage.stop.set()
    assert (await asyncio.wait_for(task, 60)).code == 143
