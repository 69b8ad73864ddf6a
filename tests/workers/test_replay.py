"""A Replay on the memory broker: what it publishes and what it settles."""

import asyncio

import pytest

from deadletter.api.replay_spec import Rate
from deadletter.brokers.memory import MemoryBroker
from deadletter.brokers.memory.partition_writer import MemoryPartitionWriter
from deadletter.core.headers import read_headers
from deadletter.core.replay_progress import SettledAs
from deadletter.workers import exit_status
from tests.workers.replay_scene import Scene, adds_up, letter


async def test_every_open_letter_goes_back_to_its_origin_once(scene):
    await scene.bury(*(letter(number) for number in range(250)))
    result = await scene.replay()
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed")
    assert await scene.numbers() == list(range(250))
    assert await scene.open_letters() == []
    (progress,) = await scene.all_progress()
    assert (progress.scanned, progress.matched, progress.replayed, progress.phase) == (250, 250, 250, "Finished")
    assert progress.targets == {"orders": 250}
    assert len(progress.groups) == 1
    assert progress.samples == tuple(f"0-{number}" for number in range(10))
    assert adds_up([progress])


async def test_a_finished_replay_does_nothing_when_run_again(scene):
    await scene.bury(letter(1))
    await scene.replay()
    await scene.bury(letter(2))
    result = await scene.replay()
    assert result.reason == "AllReplayed"
    assert await scene.numbers() == [1]


async def test_a_replayed_message_has_its_own_headers_and_names_its_replay(scene):
    await scene.bury(letter(7, replays=1))
    await scene.replay()
    (message,) = await scene.messages()
    names = {name for name, _ in message.headers}
    known = read_headers(dict(message.headers))
    assert (known.replay, known.replays, known.id) == ("uid-1", 2, "orders/0/7")
    assert names == {"trace", "dlq-id", "dlq-replay", "dlq-replays"}
    assert (message.key, message.value) == (b"key-7", b'{"n": 7}')


async def test_to_the_retry_box_attempts_start_again(scene, server):
    await scene.bury(letter(3))
    await scene.replay(target={"kind": "Retry"})
    (waiting,) = server.boxes["orders.dlq.retry"].waiting.values()
    known = read_headers(dict(waiting.message.headers))
    assert (known.attempts, known.first_failed_at, known.origin.offset, known.replay) == (0, None, 3, "uid-1")
    assert known.id == "orders/0/3"
    assert await scene.messages() == []


async def test_the_origin_partition_is_kept_and_a_missing_one_goes_by_key(scene, server):
    kept, gone = letter(1), letter(2)
    kept.headers = tuple((n, b"1" if n == "dlq-origin-partition" else v) for n, v in kept.headers)
    gone.headers = tuple((n, b"9" if n == "dlq-origin-partition" else v) for n, v in gone.headers)
    await scene.bury(kept, gone)
    await scene.replay()
    assert server.boxes["orders"].partitions[1][0].key == b"key-1"
    assert sorted(await scene.numbers()) == [1, 2]


async def test_a_transform_changes_messages_and_a_failing_one_skips_them(scene):
    poison = letter(2)
    poison.value = b"\xff"
    await scene.bury(letter(1), poison)
    patch = [{"op": "replace", "path": "/n", "value": None}]
    await scene.replay(transform={"setHeaders": {"x-fixed": "true"}, "removeHeaders": ["trace"], "jsonPatch": patch})
    (message,) = await scene.messages()
    assert message.value == b'{"n":null}'
    assert dict(message.headers)["x-fixed"] == b"true"
    assert "trace" not in dict(message.headers)
    (progress,) = await scene.all_progress()
    assert progress.skipped == {"TransformError": 1}
    assert [kept.value for kept in await scene.messages("orders.dlq")] == [b'{"n": 1}', b"\xff"]


async def test_timestamps_are_new_unless_asked(scene):
    await scene.bury(letter(1))
    await scene.replay()
    await scene.bury(letter(2))
    await scene.replay("uid-2", timestamp="Original")
    new, old = await scene.messages()
    assert new.timestamp > 1_700_000_001_000
    assert old.timestamp == 1_700_000_000_002


async def test_archived_letters_are_settled_and_can_be_restored(scene):
    await scene.bury(letter(1), letter(2))
    await scene.replay("archive", action="Archive", select={"ids": ["0-0"]})
    assert await scene.open_letters() == [2]
    assert await scene.numbers() == []
    (progress,) = await scene.all_progress("archive")
    assert (progress.archived, progress.replayed) == (1, 0)
    await scene.replay("restore", select={"state": "Archived"})
    assert await scene.numbers() == [1]
    again = await scene.replay("again", select={"state": "Archived"})
    assert again.reason == "NothingMatched"


async def test_discarded_letters_are_settled(scene):
    await scene.bury(letter(1), letter(2))
    result = await scene.replay(action="Discard", select={"where": "payload.n == 1"})
    assert result.reason == "AllDiscarded"
    assert await scene.open_letters() == [2]
    assert (await scene.all_progress())[0].discarded == 1


class BatchSizeRecorder:
    """A sink that records how many letters it gets at once."""

    def __init__(self):
        self.batch_sizes = []

    async def send(self, results):
        self.batch_sizes.append(len(results))


class ConcurrencyRecorder:
    """A sink that records how many partitions send at the same time."""

    def __init__(self):
        self.current = self.peak = 0

    async def send(self, results):
        self.current += bool(results)
        self.peak = max(self.peak, self.current)
        for _ in range(50):
            await asyncio.sleep(0)
        self.current -= bool(results)


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_parallelism_limits_the_partitions_replayed_at_once(server, parallelism):
    scene = await Scene(MemoryBroker(server), partitions=5).build()
    for partition in range(5):
        await scene.bury(*(letter(number) for number in range(3)), partition=partition)
    recorder = ConcurrencyRecorder()
    assignment = scene.assignment(target={"kind": "Queue", "box": "orders"}, parallelism=parallelism)
    assert (await scene.run(assignment, sink=recorder)).code == 0
    assert recorder.peak == parallelism
    assert sum(progress.replayed for progress in await scene.all_progress()) == 15


async def test_no_more_letters_are_in_flight_than_the_rate_allows_now(scene):
    await scene.bury(*(letter(number) for number in range(20)))
    sink = BatchSizeRecorder()
    assignment = scene.assignment(target={"kind": "Queue", "box": "orders"}, parallelism=2)
    result = await scene.run(assignment, sink=sink, rate=lambda: Rate(max_in_flight=6))
    assert result.code == 0
    assert max(sink.batch_sizes) == 3
    assert sum(sink.batch_sizes) == 20


async def test_fewer_letters_in_flight_than_partitions_at_once(server):
    scene = await Scene(MemoryBroker(server), partitions=5).build()
    for partition in range(5):
        await scene.bury(*(letter(number) for number in range(3)), partition=partition)
    recorder = ConcurrencyRecorder()
    assignment = scene.assignment(target={"kind": "Queue", "box": "orders"}, parallelism=5)
    assert (await scene.run(assignment, sink=recorder, rate=lambda: Rate(max_in_flight=2))).code == 0
    assert recorder.peak == 2
    assert sum(progress.replayed for progress in await scene.all_progress()) == 15


async def test_letters_are_archived_in_batches_of_bounded_size(scene, monkeypatch):
    monkeypatch.setattr("deadletter.workers.replay.partition.MAX_BATCH_BYTES", 1_000)
    batches, commit = [], MemoryPartitionWriter.commit

    async def record(writer, batch):
        batches.append(len(batch.settled.get(SettledAs.Archived, ())))
        await commit(writer, batch)

    monkeypatch.setattr(MemoryPartitionWriter, "commit", record)
    await scene.bury(*(letter(number) for number in range(10)))
    assert (await scene.replay(action="Archive")).code == 0
    assert (sum(batches), max(batches)) == (10, 4)
