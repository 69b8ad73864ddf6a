"""Faults of Kafka during a Replay: retention, missing and smaller targets, restarted brokers, corrupt batches."""

import asyncio
import signal
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from deadletter.brokers.connect import open_broker
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.offsets import LATEST, list_offsets
from deadletter.core import headers
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Envelope, Message, Origin
from deadletter.workers import backoff, exit_status
from tests.bed import beds, processes
from tests.bed import kafka as kafka_part
from tests.brokers.corrupting import CORRUPTIONS, corrupt_batch
from tests.brokers.writer_processes import RECOVERY_TIMEOUT_S
from tests.workers.replay_pods import (
    LOCAL_NETWORKS,
    TIMEOUT_S,
    ReplayPod,
    assert_all_replayed_once,
    bury_numbers,
    wait_for_arrivals,
)
from tests.workers.replay_scene import Scene, adds_up, letter


@asynccontextmanager
async def open_scene(address: str):
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", {"kafka": {"bootstrapServers": [address]}})
    async with open_broker(scene.assignment().broker, lambda *_: b"", LOCAL_NETWORKS) as broker:
        scene.broker = broker
        yield await scene.build()


@pytest.fixture
async def scene(kafka):
    async with open_scene(kafka) as scene:
        yield scene


async def delete_below(scene: Scene, below: int) -> None:
    """Delete everything below this offset, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.connection["kafka"]["bootstrapServers"])
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(scene.boxes.dead, 0): RecordsToDelete(before_offset=below)})
    finally:
        await admin.close()


def padded(number: int, scene: Scene) -> Message:
    message = letter(number, scene.name)
    message.headers = (*message.headers, ("pad", b"x" * 4_096))
    return message


@pytest.mark.parametrize("below", [2_900, 3_000])
async def test_letters_deleted_before_they_are_read_are_counted(scene, tmp_path, below):
    """There are more letters than a reader has prefetched, so that it meets the gap while it runs."""
    for start in range(0, 3_000, 500):
        await scene.bury(*(padded(number, scene) for number in range(start, start + 500)))
    live = tmp_path / "live.json"
    live.write_text('{"rate": {"perSecond": 20}}')
    pod = ReplayPod(tmp_path, scene)
    process = await pod.start()
    await wait_for_arrivals(scene, 5, process)
    await delete_below(scene, below)
    live.write_text('{"rate": {"perSecond": 1000000}}')
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == exit_status.FAILED
    assert pod.termination_message["reason"] == "WindowExpired"
    (progress,) = await scene.all_progress()
    assert progress.skipped["Expired"] > 0
    assert progress.replayed + progress.skipped["Expired"] == 3_000
    assert adds_up([progress])
    sent = await scene.numbers()
    assert sent == sorted(set(sent))
    assert len(sent) == progress.replayed
    assert set(range(below, 3_000)) <= set(sent)


async def test_a_missing_target_is_named_and_retried(scene, monkeypatch):
    monkeypatch.setattr(backoff, "INITIAL_DELAY_S", 0.01)
    await bury_numbers(scene, 6)
    box = f"{scene.name}-elsewhere"
    target = {"kind": "Box", "box": box}
    result = await scene.replay(target=target)
    assert (result.code, result.reason) == (exit_status.TRY_AGAIN, "BoxMissing")
    assert box in result.message
    assert await scene.open_letters() == list(range(6))
    await scene.broker.ensure(BoxSpec(box, 1))
    result = await scene.replay(target=target)
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed")
    assert await scene.numbers(box) == list(range(6))
    assert [progress.replayed for progress in await scene.all_progress()] == [6]


async def test_a_letter_too_large_for_its_target_is_skipped_or_fails_the_replay(scene):
    box = f"{scene.name}-small"
    await scene.broker.ensure(BoxSpec(box, 1, config={"max.message.bytes": "3000"}))
    await scene.bury(letter(0, scene.name), padded(1, scene), letter(2, scene.name))
    target = {"kind": "Box", "box": box}
    result = await scene.replay(target=target, onTooLarge="Fail")
    assert (result.code, result.reason) == (exit_status.FAILED, "TooLarge")
    assert 1 in await scene.open_letters()
    result = await scene.replay("uid-2", target=target)
    assert (result.code, result.reason) == (exit_status.FINISHED, "PartlyReplayed")
    assert await scene.numbers(box) == [0, 2]
    assert await scene.open_letters() == [1]
    assert [progress.skipped for progress in await scene.all_progress("uid-2")] == [{"TooLarge": 1}]


async def test_letters_whose_origin_is_missing_stay_or_fail_the_replay(scene):
    await scene.bury(letter(0, scene.name), letter(1, f"{scene.name}-gone"), letter(2, scene.name))
    result = await scene.replay(onMissingOrigin="Fail")
    assert (result.code, result.reason) == (exit_status.FAILED, "OriginUnknown")
    assert await scene.numbers() == [0]
    result = await scene.replay("uid-2")
    assert (result.code, result.reason) == (exit_status.FINISHED, "PartlyReplayed")
    assert sorted(await scene.numbers()) == [0, 2]
    assert await scene.open_letters() == [1]
    assert [progress.skipped for progress in await scene.all_progress("uid-2")] == [{"NoOrigin": 1}]


async def allow_all(_hosts) -> None:
    """Allow connections to every address."""


class OpenTransactions:
    """Shows whether a transaction is open in the origin: its last stable offset is below its end."""

    def __init__(self, scene: Scene) -> None:
        self.client = KafkaClient(scene.connection["kafka"]["bootstrapServers"], dict, allow_all)
        self.name = scene.name

    async def is_open(self) -> bool:
        wanted = {TopicPartition(self.name, p): LATEST for p in range(await self.client.partition_count(self.name))}
        return await list_offsets(self.client, wanted, read_committed=True) != await list_offsets(self.client, wanted)


async def stop_in_a_transaction(process: asyncio.subprocess.Process, transactions: OpenTransactions) -> None:
    """Suspend the replayer while one of its transactions is open."""
    async with asyncio.timeout(TIMEOUT_S):
        while process.returncode is None:
            process.send_signal(signal.SIGSTOP)
            if await transactions.is_open():
                return
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)


async def test_a_transaction_that_timed_out_loses_and_repeats_nothing(scene, tmp_path):
    """The broker aborts the transaction of a suspended pod; resumed, the pod must not treat it as committed."""
    await bury_numbers(scene, 20_000)
    pod, transactions = ReplayPod(tmp_path, scene, rate={"maxInFlight": 200}), OpenTransactions(scene)
    process = await pod.start()
    try:
        await wait_for_arrivals(scene, 100, process)
        await stop_in_a_transaction(process, transactions)
        async with asyncio.timeout(TIMEOUT_S):
            while await transactions.is_open():
                await asyncio.sleep(0.2)
    finally:
        await transactions.client.close()
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
    code = await asyncio.wait_for(process.wait(), TIMEOUT_S)
    while code in (exit_status.TRY_AGAIN, exit_status.FENCED):  # as the Job does
        code = await pod.run_to_end()
    assert code == exit_status.FINISHED, (tmp_path / "log").read_text()[-2_000:]
    await assert_all_replayed_once(scene, 20_000)


def of_partition(partition: int, number: int, scene: Scene) -> Message:
    known = Envelope(origin=Origin(scene.name, partition, number, 1_700_000_000_000), group="billing", attempts=5)
    return headers.add_headers(Message(b"key-%d" % number, b"{}", ()), known)


async def test_an_origin_with_fewer_partitions_gets_its_letters_by_key(scene):
    """The letters come from partitions 1 and 7; the topic has only 0 and 1 now."""
    await scene.bury(*(of_partition(1 if number < 4 else 7, number, scene) for number in range(8)))
    result = await scene.replay()
    assert result.reason == "AllReplayed"
    found = {}
    async for batch in scene.broker.read(scene.name, await scene.broker.window(scene.name)):
        found |= {int(taken.message.key.split(b"-")[1]): taken.place.partition for taken in batch}
    assert sorted(found) == list(range(8))
    assert [found[number] for number in range(4)] == [1, 1, 1, 1]
    assert {found[number] for number in range(4, 8)} <= {0, 1}
    assert [(progress.replayed, progress.skipped) for progress in await scene.all_progress()] == [(8, {})]


def retries(folder: Path) -> int:
    """Return how often the replayer retried."""
    return (folder / "log").read_text().count("retrying from the ledger")


@pytest.mark.kill
@pytest.mark.timeout(900)
async def test_a_restarted_broker_loses_and_repeats_nothing(bed, tmp_path):
    """The broker is killed and restarted three times; once it is away for longer than other errors are retried."""
    part = beds.Part("bounced-replay-kafka", 2, kafka_part.start)
    started = bed.ensure_part(part)
    address, ports = started["address"], started["ports"]
    async with open_scene(f"{address}:{ports[0]}") as scene:
        await bury_numbers(scene, 20_000)
        process = await ReplayPod(tmp_path, scene, rate={"maxInFlight": 100}).start()
        for share, min_retries in ((10, 0), (40, 2 * backoff.MAX_TRIES), (70, 0)):
            await wait_for_arrivals(scene, 20_000 * share // 100, process)
            processes.kill(processes.find_of_bed(bed.directory, part.name))
            wanted = retries(tmp_path) + min_retries
            async with asyncio.timeout(4 * TIMEOUT_S):
                while retries(tmp_path) < wanted:
                    await asyncio.sleep(0.2)
            await asyncio.to_thread(kafka_part.start, bed.directory, part.name, address, *ports)
            before = len(await scene.numbers())
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                while len(await scene.numbers()) == before:
                    await asyncio.sleep(0.2)
        log = tmp_path / "log"
        assert await asyncio.wait_for(process.wait(), 4 * TIMEOUT_S) == exit_status.FINISHED, log.read_text()[-2_000:]
        assert len(log.read_text().splitlines()) < 500
        await assert_all_replayed_once(scene, 20_000)
    processes.stop(processes.find_of_bed(bed.directory, part.name))


@pytest.mark.parametrize("change", CORRUPTIONS, ids=lambda change: change.__name__)
async def test_an_undecodable_batch_stops_the_replay_and_is_named(scene, bed, change):
    await scene.bury(*(letter(number, scene.name) for number in range(3)))
    poison = letter(3, scene.name)
    poison.value, poison.headers = b"poison", (*poison.headers, ("header-name", b"v"))
    await scene.bury(poison)
    await scene.bury(*(letter(number, scene.name) for number in range(4, 6)))
    (log,) = (bed.directory / "kafka" / "log").glob(f"{scene.boxes.dead}-0/*.log")
    corrupt_batch(log, change)
    result = await scene.replay()
    assert (result.code, result.reason) == (exit_status.NEEDS_INTERVENTION, "Undecodable")
    assert "partition 0 cannot be read at offset 3" in result.message
    assert await scene.numbers() == []
    for name, ids in (("before", ["0-0", "0-2"]), ("behind", ["0-4", "0-5"])):
        assert (await scene.replay(name, select={"ids": ids})).code == 0
    assert sorted(await scene.numbers()) == [0, 2, 4, 5]


async def test_offsets_of_transaction_markers_cause_no_requests(scene, kafka, monkeypatch):
    producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=scene.name)
    await producer.start()
    for number in range(20):
        one = letter(number, scene.name)
        async with producer.transaction():
            await producer.send_and_wait(scene.boxes.dead, one.value, one.key, headers=list(one.headers), partition=0)
    await producer.stop()
    calls, window = [], scene.broker.window

    async def count(*args):
        calls.append(args)
        return await window(*args)

    monkeypatch.setattr(scene.broker, "window", count)
    assert (await scene.replay()).code == 0
    assert len(calls) <= 3  # at the beginning, before the first letter, at the end
    assert await scene.numbers() == list(range(20))
