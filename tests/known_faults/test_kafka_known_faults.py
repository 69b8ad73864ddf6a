"""Known faults of couriers, ledgers and sweeps on Kafka."""

import asyncio
import resource
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from pyroaring import BitMap

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.errors import BoxRecreated, BrokerError
from deadletter.brokers.kafka import ledger as ledgers
from deadletter.brokers.kafka import ledger_topic
from deadletter.brokers.kafka.subscription import retry_partition
from deadletter.brokers.types import MonitoredBox, Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger.records import encode_chunk, settled_key
from deadletter.core.letters import Place
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import monotonic_ms, now_ms
from deadletter.workers import exit_status
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.main import subscription_spec
from tests.bed.kafka_cluster import KafkaCluster
from tests.brokers.connections import LOOPBACK as OPEN_TO
from tests.known_faults.faults import known_fault, wait_until, wait_until_async
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message, no_secret
from tests.workers.http_service import Received, Service, ok, serving, until
from tests.workers.replay_scene import Scene, letter
from tests.workers.worker_processes import Pod

ARRIVAL_TIMEOUT_S = 10.0  # enough for messages that nothing delays
PARKING = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "300ms", "max": "300ms"}}
PARK_AT_ONCE = {"inlineLimit": "100ms"}
FAR_AHEAD_MS = 2 * 86_400_000
SENT = 400  # messages that are deleted
CHUNK = 65_536  # offsets of one settlement record


@asynccontextmanager
async def producing(queue: BrokerQueue) -> AsyncIterator[AIOKafkaProducer]:
    """Start a producer, as an application would."""
    assert queue.spec.kafka is not None
    producer = AIOKafkaProducer(bootstrap_servers=queue.spec.kafka.bootstrap_servers, max_request_size=5 << 20)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def delete_records(queue: BrokerQueue, box: str, below: int) -> None:
    """Delete the start of partition 0 of a topic, as retention does."""
    assert queue.spec.kafka is not None
    admin = AIOKafkaAdminClient(bootstrap_servers=queue.spec.kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(queue.prefix + box, 0): RecordsToDelete(below)})
    finally:
        await admin.close()


async def wait_until_paused(courier: Courier) -> bool:
    """Wait until the courier is paused and return True; return False after three seconds."""
    return await wait_until(lambda: bool(courier.gate.pause_reason(monotonic_ms())[0]), 3)


@known_fault("E17", "letters parked in a recreated retry topic are taken for delivered")
async def test_letters_parked_in_a_recreated_retry_topic_are_delivered(queue: BrokerQueue) -> None:
    await queue.create(1)
    attempts: Counter[bytes] = Counter()

    def answer(request: Received) -> web.Response:
        attempts[request.body] += 1
        return web.Response(status=200 if attempts[request.body] > 1 else 503)

    def delivered(prefix: str) -> int:
        return sum(attempts[f"{prefix}{n}".encode()] > 1 for n in range(5))

    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy={**PARKING, "maxAttempts": 3}, delivery=PARK_AT_ONCE)
        await queue.send(*(message(f"old{n}", f"k{n}") for n in range(5)))
        async with queue.courier(assignment):
            await until(lambda: delivered("old") == 5)
        await queue.broker.delete([queue.prefix + "retry"])
        await queue.broker.ensure(BoxSpec(queue.prefix + "retry", 1, 1, retention_ms=-1, is_retry_box=True))
        await queue.send(*(message(f"new{n}", f"k{n}") for n in range(5)))
        async with queue.courier(assignment):
            await until(lambda: all(attempts[f"new{n}".encode()] for n in range(5)))
            await wait_until(lambda: delivered("new") == 5, ARRIVAL_TIMEOUT_S)
    assert delivered("new") == 5


@known_fault("E10-SWEEP", "a recreated dead topic that outgrew the old mark is swept as if it were the old one")
async def test_a_sweep_reports_a_recreated_dead_topic_that_outgrew_its_mark(kafka: str, queue: BrokerQueue) -> None:
    scene = await recreated_scene(kafka, queue)
    monitor = queue.broker.monitor()
    monitored = MonitoredBox(scene.boxes.dead, scene.boxes.ledger, scene.boxes.retry)
    stats = (await monitor.sweep([monitored], int(time.time() * 1000)))[scene.boxes.dead]
    await monitor.close()
    assert isinstance(stats, BoxRecreated)


@known_fault("E10-REPLAY", "a Replay of a recreated dead topic that outgrew the old mark skips letters and succeeds")
async def test_a_replay_refuses_a_recreated_dead_topic_that_outgrew_its_mark(kafka: str, queue: BrokerQueue) -> None:
    scene = await recreated_scene(kafka, queue)
    result = await scene.replay("second")
    assert result.reason == "BoxRecreated"


async def recreated_scene(kafka: str, queue: BrokerQueue) -> Scene:
    """Return a scene with 15 letters in its dead topic; the ledger holds 10 of a deleted topic of the same name."""
    scene = Scene(queue.broker, f"{queue.prefix}e10", {"kafka": {"bootstrapServers": [kafka]}})
    await scene.build()
    await scene.bury(*(letter(n, scene.name) for n in range(10)))
    result = await scene.replay("first")
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed"), result
    await queue.broker.delete([scene.boxes.dead])
    await queue.broker.ensure(BoxSpec(scene.boxes.dead, 1, 1, retention_ms=-1))
    await scene.bury(*(letter(n, scene.name) for n in range(100, 115)))
    return scene


@known_fault("E10B", "a marker of a transaction at the old mark's offset hides that the dead topic was recreated")
async def test_a_recreated_dead_topic_is_noticed_where_a_marker_has_the_offset_of_the_mark(
    kafka: str, queue: BrokerQueue
) -> None:
    appended = {"message.timestamp.type": "LogAppendTime"}
    dead = BoxSpec(queue.prefix + "dead", 1, 1, retention_ms=-1, config=appended)
    await queue.broker.ensure(dead)
    await queue.create(1)
    scene = Scene(queue.broker, queue.prefix, {"kafka": {"bootstrapServers": [kafka]}})

    async def discard(uid: str) -> exit_status.ExitStatus:
        assignment = scene.assignment(uid, action="Discard")
        names = {name: queue.prefix + name for name in ("dead", "retry")}
        named = assignment.boxes.model_copy(
            update={**names, "source": f"{queue.prefix}orders", "ledger": f"{dead.name}.ledger"}
        )
        return await scene.run(assignment.model_copy(update={"boxes": named}))

    async def bury_each(*names: str) -> None:
        """Bury each letter in a transaction of its own, so that a marker follows it."""
        for name in names:
            count = len(await queue.buried())
            await queue.send(message(name, name))
            await queue.until_buried(count + 1)

    async with serving(lambda _: web.Response(status=422)) as service:
        assignment = queue.assignment(service.url)
        async with queue.courier(assignment):
            await bury_each(*(f"old{n}" for n in range(6)))
        mark = (await queue.buried())[-1].place.offset
        result = await discard("first")
        assert (result.code, result.counts.get("discarded")) == (exit_status.FINISHED, 6), result
        await queue.broker.delete([dead.name])
        await queue.broker.ensure(dead)
        async with producing(queue) as producer:  # one record without a marker: from here on markers have even offsets
            await producer.send_and_wait(dead.name, b"first", partition=0)
        async with queue.courier(assignment):
            await bury_each(*(f"new{n}" for n in range(7)))
    offsets = [taken.place.offset for taken in await queue.buried()]
    assert_set_up(mark not in offsets and offsets[-1] > mark)
    assert (await discard("second")).reason == "BoxRecreated"


def assert_set_up(is_as_planned: bool) -> None:
    """Raise RuntimeError unless the set-up holds: that must not count as the expected failure."""
    if not is_as_planned:
        raise RuntimeError("the set-up of the test does not hold")


@known_fault("E4", "one message that the dead topic refuses for its size pauses every partition")
async def test_a_letter_too_large_for_its_dead_topic_does_not_hold_up_other_messages(queue: BrokerQueue) -> None:
    await queue.create(2)
    async with producing(queue) as producer:  # the largest message of the topic; the envelope makes the letter larger
        await producer.send_and_wait(queue.prefix + "orders", b"x" * 1_048_300, key=b"big", partition=0)
    async with (
        serving(lambda one: web.Response(status=422 if len(one.body) > 1_000 else 200)) as service,
        queue.courier(queue.assignment(service.url)) as courier,
    ):
        await until(lambda: bool(service.received))
        await wait_until_paused(courier)
        await queue.send(*(message(f"late{n}", f"k{n}") for n in range(10)))
        late = {f"late{n}".encode() for n in range(10)}
        await wait_until(lambda: late <= set(service.bodies), ARRIVAL_TIMEOUT_S)
        assert late <= set(service.bodies)


@known_fault("E5", "one message with a time far ahead cannot be parked and pauses every partition")
async def test_a_message_with_a_time_far_ahead_does_not_hold_up_other_messages(queue: BrokerQueue) -> None:
    far = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    await queue.broker.ensure(BoxSpec(queue.prefix + "orders", 2, 1, config=far))
    await queue.create(2)
    ahead = int(time.time() * 1000) + FAR_AHEAD_MS
    async with producing(queue) as producer:
        await producer.send_and_wait(queue.prefix + "orders", b"future", key=b"f", partition=0, timestamp_ms=ahead)
    async with serving(lambda one: web.Response(status=500 if one.body == b"future" else 200)) as service:
        assignment = queue.assignment(service.url, policy={**PARKING, "maxAttempts": 5}, delivery=PARK_AT_ONCE)
        async with queue.courier(assignment) as courier:
            await until(lambda: bool(service.received))
            await wait_until_paused(courier)
            await queue.send(*(message(f"late{n}", f"k{n}") for n in range(10)))
            late = {f"late{n}".encode() for n in range(10)}
            await wait_until(lambda: late <= set(service.bodies), ARRIVAL_TIMEOUT_S)
            assert late <= set(service.bodies)


@known_fault("E12", "a courier with a low soft limit of open files serves only some of its partitions")
async def test_a_courier_serves_all_partitions_under_a_low_soft_limit_of_open_files(
    queue: BrokerQueue, tmp_path: Path
) -> None:
    partitions = 40
    await queue.create(partitions)
    box = queue.prefix + "orders"
    sent = [Publication(box, message(f"{p}", f"k{p}"), Place("test", 0, p), p) for p in range(partitions)]
    await queue.broker.publish(sent)
    async with serving(ok) as service:
        pod = Pod(tmp_path / "pod", queue.assignment(service.url))
        with soft_limit_of_files(64):
            await pod.start()
        try:
            await wait_until(lambda: len(served(service)) == partitions or is_out_of_files(pod), 60)
            await wait_until(lambda: len(served(service)) == partitions, 3)
        finally:
            await pod.end(signal.SIGKILL)
    assert served(service) == set(range(partitions))


def served(service: Service) -> set[int]:
    """Return the partitions of which a message has arrived."""
    return {int(one.headers["Dlq-Partition"]) for one in service.received}


def is_out_of_files(pod: Pod) -> bool:
    return "Too many open files" in (pod.folder / "log").read_text()


@contextmanager
def soft_limit_of_files(count: int) -> Iterator[None]:
    """Give processes started in the block this soft limit of open files; they may raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@known_fault("E19", "settlements of letters that were trimmed from the retry topic stay in the ledger")
async def test_settlements_of_a_trimmed_retry_topic_leave_the_ledger(
    queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_partition, "TRIM_INTERVAL_S", 0.0)
    await queue.create(1)
    ledger, retry = f"{queue.prefix}dead.ledger", f"{queue.prefix}retry"
    key = settled_key(retry, 0, SettledAs.Delivered, 0)
    client = queue.broker._kafka
    async with queue.broker.subscribe(
        subscription_spec(queue.assignment("http://127.0.0.1:1/"), "pod-0")
    ) as subscription:
        await subscription.report_status(WorkerStatus("pod-0", at=1))  # creates the ledger
    await ledgers.write_without_transaction(client, ledger, {0: [(key, encode_chunk(key, BitMap(range(CHUNK))))]})
    async with producing(queue) as producer:
        await fill(producer, retry, CHUNK)
    await delete_records(queue, "retry", CHUNK)
    attempts: Counter[bytes] = Counter()

    def answer(request: Received) -> web.Response:
        attempts[request.body] += 1
        return web.Response(status=200 if attempts[request.body] > 1 else 503)

    async def is_forgotten() -> bool:
        return key not in await ledgers.read_ledger(client, ledger, lambda one: one.kind == "settled")

    async with serving(answer) as service:
        assignment = queue.assignment(service.url, policy={**PARKING, "maxAttempts": 3}, delivery=PARK_AT_ONCE)
        async with queue.courier(assignment):
            await queue.send(message("parked"))
            await until(lambda: attempts[b"parked"] == 2)
            await wait_until_async(is_forgotten, 5)
    assert await is_forgotten()


async def fill(producer: AIOKafkaProducer, topic: str, count: int) -> None:
    """Write `count` empty records to partition 0."""
    for _ in range(0, count, 1_024):
        batch = producer.create_batch()
        for _ in range(1_024):
            assert_set_up(batch.append(key=None, value=b"", timestamp=None) is not None)
        await (await producer.send_batch(batch, topic, partition=0))


@known_fault("E26", "while one of three brokers is down, sweeps and probes of the others fail")
async def test_probes_and_sweeps_go_on_while_one_of_three_brokers_is_down(kafka_cluster: KafkaCluster) -> None:
    spec = BrokerConnectionSpec.model_validate({"kafka": {"bootstrapServers": kafka_cluster.servers}})
    dead, ledger = (f"fault-{uuid.uuid4().hex[:10]}.{name}" for name in ("dead", "ledger"))
    async with AsyncExitStack() as stack:
        # Each client asks a random broker: with 12, one asks the broker that is down in all but one run of 10,000.
        clients = [await stack.enter_async_context(open_broker(spec, no_secret, allow=OPEN_TO)) for _ in range(12)]
        await clients[0].ensure(BoxSpec(dead, 3, 3, retention_ms=-1))
        await clients[0].ensure(BoxSpec(ledger, ledger_topic.LEDGER_PARTITIONS, 3, config=ledger_topic.LEDGER_CONFIG))
        watchers = [(one, one.monitor()) for one in clients]
        before = [error for watcher in watchers for error in await failures(*watcher, MonitoredBox(dead, ledger))]
        assert_set_up(not before)
        kafka_cluster.kill(3)
        async with asyncio.timeout(60):
            while any(one.leader in (-1, 3) for one in kafka_cluster.partitions(dead, ledger)):
                await asyncio.sleep(0.5)
        found = [error for watcher in watchers for error in await failures(*watcher, MonitoredBox(dead, ledger))]
        for _, monitor in watchers:
            await monitor.close()
    assert found == []


async def failures(broker: Broker, monitor: BoxMonitor, watched: MonitoredBox) -> list[str]:
    """Probe, describe and sweep twice, as the operator does; return the calls that failed."""
    calls = {
        "server": broker.server_info,
        "describe": partial(broker.describe, [watched.dead]),
        "sweep": partial(swept, monitor, watched),
    }
    found: list[str] = []
    for name, call in [*calls.items(), *calls.items()]:
        try:
            await call()
        except BrokerError as error:
            found.append(f"{name}: {type(error).__name__}")
    return found


async def swept(monitor: BoxMonitor, watched: MonitoredBox) -> None:
    for reading in (await monitor.sweep([watched], now_ms())).values():
        if isinstance(reading, BrokerError):
            raise reading
