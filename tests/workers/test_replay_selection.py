"""Which letters a Replay on the memory broker takes: by selection, by id, by a preview."""

import asyncio

import pytest

from deadletter.brokers.memory import MemoryBroker
from deadletter.core.letters import Category, Failure
from deadletter.workers import exit_status
from tests.workers.replay_scene import Scene, adds_up, letter, number_of


@pytest.mark.parametrize(
    ("select", "taken"),
    [
        ({"where": "attempts == 5 && headers['trace'] == 't3'"}, [3]),
        ({"where": "payload.n >= 8"}, [8, 9]),
        ({"ids": ["0-2", "0-5"]}, [2, 5]),
        ({"ids": ["0-2", "0-5"], "where": "payload.n == 5"}, [5]),
        ({"limit": 4}, [0, 1, 2, 3]),
        ({"where": "payload.n > 4", "limit": 2}, [5, 6]),
        ({"since": "2023-11-14T22:13:20.007Z"}, [7, 8, 9]),
        ({"until": "2023-11-14T22:13:20.002Z"}, [0, 1]),
        ({"fingerprint": "00000000"}, []),
    ],
)
async def test_a_selection_takes_exactly_its_letters(scene, select, taken):
    await scene.bury(*(letter(number) for number in range(10)))
    result = await scene.replay(select=select)
    assert result.reason == ("AllReplayed" if taken else "NothingMatched")
    assert await scene.numbers() == taken
    assert sorted(await scene.open_letters() + taken) == list(range(10))
    assert adds_up(await scene.all_progress())


async def test_a_limit_takes_partitions_in_order(server):
    scene = await Scene(MemoryBroker(server), partitions=3).build()
    for partition in range(3):
        await scene.bury(*(letter(10 * partition + number) for number in range(4)), partition=partition)
    await scene.replay(select={"limit": 6})
    assert sorted(await scene.numbers()) == [0, 1, 2, 3, 10, 11]


async def test_an_expression_that_fails_selects_nothing_and_is_counted(scene):
    poison = letter(1)
    poison.value = b"not json"
    await scene.bury(letter(0), poison)
    await scene.replay(select={"where": "payload.n >= 0"})
    (progress,) = await scene.all_progress()
    assert (progress.matched, progress.replayed, progress.skipped) == (1, 1, {"SelectorError": 1})
    assert await scene.open_letters() == [1]


async def test_a_preview_publishes_nothing_and_a_replay_takes_exactly_its_letters(scene):
    await scene.bury(*(letter(number) for number in range(6)))
    result = await scene.replay("dry", mode="DryRun", select={"where": "payload.n % 2 == 0"})
    (progress,) = await scene.all_progress("dry")
    assert result.reason == "DryRunFinished"
    assert (progress.matched, progress.replayed, progress.targets) == (3, 0, {"orders": 3})
    assert progress.bytes > 0
    assert await scene.numbers() == []
    await scene.bury(letter(8))
    await scene.replay("apply", preview_uid="dry")
    assert await scene.numbers() == [0, 2, 4]


async def test_a_replay_of_a_deleted_preview_takes_nothing(scene):
    await scene.bury(letter(0), letter(1))
    await scene.replay("dry", mode="DryRun", select={"limit": 1})
    await scene.replay("nothing", mode="DryRun", select={"where": "false"})
    await scene.broker.delete_replay_records(scene.boxes.ledger, "dry")
    result = await scene.replay("apply", preview_uid="dry")
    assert (result.code, result.reason) == (exit_status.NEEDS_INTERVENTION, "ReplayNotFound")
    assert (await scene.replay("other", preview_uid="nothing")).reason == "NothingMatched"
    assert await scene.open_letters() == [0, 1]


async def test_every_letter_of_a_preview_is_reported(scene, server):
    await scene.bury(*(letter(number) for number in range(4)))
    await scene.replay("dry", mode="DryRun")
    await scene.replay("first", select={"ids": ["0-2"]})
    del server.boxes["orders.dlq"].partitions[0][0]
    await scene.replay("apply", preview_uid="dry")
    (progress,) = await scene.all_progress("apply")
    assert progress.skipped == {"Expired": 1, "AlreadySettled": 1}
    assert (progress.matched, progress.replayed) == (4, 2)
    assert await scene.numbers() == [2, 1, 3]
    assert adds_up([progress])


async def test_ids_that_do_not_exist_count_as_expired(scene):
    await scene.bury(letter(0))
    await scene.replay(select={"ids": ["0-0", "0-99", "7-1"]})
    (progress,) = await scene.all_progress()
    assert (progress.matched, progress.replayed, progress.skipped) == (3, 1, {"Expired": 2})
    assert progress.samples == ("0-0",)


async def test_a_preview_of_an_observed_queue_writes_nothing(scene, server):
    await scene.bury(*(letter(number) for number in range(5)))
    result = await scene.replay(mode="DryRun", observe=True, select={"where": "payload.n < 3"})
    assert (result.code, result.reason, result.counts["matched"]) == (0, "DryRunFinished", 3)
    assert result.counts["samples"] == ["0-0", "0-1", "0-2"]
    assert not server.ledgers["orders.dlq.ledger"].progress


async def test_an_invalid_expression_needs_intervention(scene):
    result = await scene.replay(select={"where": "nonsense =="})
    assert (result.code, result.reason) == (exit_status.NEEDS_INTERVENTION, "InvalidSpec")


async def test_letters_are_counted_by_failure_group(scene):
    other = Failure("Refused", "card 12 is blocked", Category.Validation)
    await scene.bury(letter(1), letter(2), letter(3, failure=other))
    await scene.replay("dry", mode="DryRun")
    (progress,) = await scene.all_progress("dry")
    assert sorted(progress.groups.values()) == [1, 2]
    fingerprint = next(name for name, count in progress.groups.items() if count == 1)
    await scene.replay(select={"fingerprint": fingerprint})
    assert await scene.numbers() == [3]


async def test_a_limit_takes_the_same_letters_wherever_it_is_interrupted(server, monkeypatch):
    monkeypatch.setattr("deadletter.workers.replay.partition.MAX_BATCH_LETTERS", 1)
    scene = await Scene(MemoryBroker(server), partitions=3).build()
    for partition in range(3):
        await scene.bury(*(letter(10 * partition + number) for number in range(4)), partition=partition)
    arrived = []

    class Interrupted:
        async def send(self, results):
            arrived.extend(number_of(one.publication.message) for one in results if one.publication is not None)
            if len(arrived) % 2 == 0:
                stop.set()

    assignment = scene.assignment(select={"limit": 6}, target={"kind": "Queue", "box": "orders"})
    code = exit_status.STOPPED
    while code == exit_status.STOPPED:
        stop = asyncio.Event()
        code = (await scene.run(assignment, stop=stop, sink=Interrupted())).code
    assert code == exit_status.FINISHED
    assert arrived == [0, 1, 2, 3, 10, 11]
    assert sum(progress.matched for progress in await scene.all_progress()) == 6
