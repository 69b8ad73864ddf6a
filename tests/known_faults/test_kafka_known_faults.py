"""Known faults of couriers, ledgers and sweeps on Kafka."""

import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from deadletter.brokers.errors import BoxRecreated
from deadletter.brokers.types import MonitoredBox, Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Place
from deadletter.wall_clock import monotonic_ms
from deadletter.workers import exit_status
from deadletter.workers.courier.courier import Courier
from tests.known_faults.faults import known_fault, wait_until
from tests.workers.broker_queue import BrokerQueue, producing
from tests.workers.couriers import QUICK, message
from tests.workers.http_service import Received, Service, ok, serving, until
from tests.workers.replay_scene import Scene, letter
from tests.workers.worker_processes import Pod

ARRIVAL_TIMEOUT_S = 10.0  # enough for messages that nothing delays
PARKING = {**QUICK, "backoff": {"strategy": "Fixed", "initial": "300ms", "max": "300ms"}}
PARK_AT_ONCE = {"inlineLimit": "100ms"}
FAR_AHEAD_MS = 2 * 86_400_000
SENT = 400  # messages that are deleted
CHUNK = 65_536  # offsets of one settlement record


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
