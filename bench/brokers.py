"""Measure Kafka: exactly-once replay, sweep, building the letter index, memory, delay of readers.

ours   partition writers of four partitions in one process: read, select, publish, settle in transactions of 2,000
peers  a plain Java client doing the same, `kcat | kcat` (values only)

python -m bench.brokers [--letters 400000] [--rounds 3] [--queues 500]
"""

import argparse
import asyncio
import resource
import statistics
import struct
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench import peers
from bench.lines import bound, progress, versus
from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, PartitionWriter
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import CommitBatch, MonitoredBox, Publication, StoredMessage
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.workers.process import tune_gc, tune_malloc
from tests.bed import beds
from tests.workers.replay_scene import Scene
from tests.workers.replay_scene import letter as dead_letter

PARTITIONS, STEP = 4, 2_000
ANYWHERE = ("0.0.0.0/0", "::/0")
HEADERS = tuple((f"header-{n}", b"a value of a header") for n in range(6))
CLIENTS = ((AIOKafkaProducer, {}), (AIOKafkaConsumer, {"isolation_level": "read_committed"}))
Run = Callable[[], Awaitable[float]]


def connect(**spec: object) -> AbstractAsyncContextManager[Broker]:
    """Open a broker of the test bed."""
    return open_broker(BrokerConnectionSpec.model_validate(spec), lambda _name, _key: b"", ANYWHERE)


def letter(number: int) -> Message:
    """Return a letter of 1 KiB with six headers."""
    return Message(f"key-{number}".encode(), b"x" * 1_024, HEADERS)


async def fill(broker: Broker, box: str, letters: int, partitions: int = PARTITIONS) -> None:
    """Publish letters, spread over the partitions."""
    for first in range(0, letters, 5_000):
        numbers = range(first, min(first + 5_000, letters))
        await broker.publish([Publication(box, letter(n), Place("bench", 0, n), n % partitions) for n in numbers])


async def replay(broker: Broker, dead: str, ledger: str, target: str, every: int) -> float:
    """Replay the whole box and return the seconds; every `every`-th letter is selected."""
    begun = time.monotonic()
    spans = await broker.window(dead)
    await asyncio.gather(*(move(broker, dead, ledger, target, every, span) for span in spans))
    return time.monotonic() - begun


async def move(broker: Broker, dead: str, ledger: str, target: str, every: int, span: Span) -> None:
    """Replay one partition through its writer."""
    async with broker.partition_writer(dead, ledger, span.partition, "bench") as writer:
        position = PartitionProgress(span, time.time_ns() // 1_000_000, span.start)
        chosen: list[StoredMessage] = []
        async for batch in broker.read(dead, [span]):
            chosen += [one for one in batch if one.place.offset % every == 0 and writer.is_open(one.place.offset)]
            while len(chosen) >= STEP:
                position = await commit(writer, target, position, chosen[:STEP])
                del chosen[:STEP]
        if chosen:
            await commit(writer, target, position, chosen)


async def commit(
    writer: PartitionWriter, target: str, position: PartitionProgress, chosen: list[StoredMessage]
) -> PartitionProgress:
    """Publish, settle and count these letters in one transaction; return the progress after it."""
    position = position.evolve(next=chosen[-1].place.offset + 1, replayed=position.replayed + len(chosen))
    publications = [Publication(target, one.message, one.place, one.place.partition) for one in chosen]
    await writer.commit(CommitBatch(position, publications, {SettledAs.Replayed: [one.place.offset for one in chosen]}))
    return position


async def interleaved(rounds: int, runs: dict[str, Run]) -> dict[str, float]:
    """Return the median seconds of each run; the runs take turns."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in runs.items():
            taken[name].append(await run())
            progress(f"round {turn + 1}: {name} {taken[name][-1]:.2f} s")
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


async def kafka_replays(broker: Broker, servers: str, bed: beds.Bed, letters: int, rounds: int) -> None:
    """Compare with Java for all letters and for half of them, and with kcat for all."""
    dead = f"bench-{uuid.uuid4().hex[:8]}"
    await broker.ensure(BoxSpec(dead, PARTITIONS))
    await fill(broker, dead, letters)
    classes = peers.compiled(bed)

    async def target() -> tuple[str, str]:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        await broker.ensure(BoxSpec(name, PARTITIONS))
        await broker.ensure(BoxSpec(f"{name}.ledger", 3, config={"cleanup.policy": "compact"}))
        return name, f"{name}.ledger"

    async def ours(every: int) -> float:
        name, ledger = await target()
        return await replay(broker, dead, ledger, name, every)

    async def java(every: int) -> float:
        name, ledger = await target()
        return await peers.java(classes, [servers, dead, ledger, name, str(PARTITIONS), str(STEP), str(every)])

    async def kcat() -> float:
        return await peers.kcat(servers, dead, (await target())[0], letters)

    for every, goal, share in ((1, 1.0, 100), (2, 1.3, 50)):
        runs: dict[str, Run] = {"ours": lambda n=every: ours(n), "java": lambda n=every: java(n)}
        if every == 1:
            runs["kcat"] = kcat
        took = await interleaved(rounds, runs)
        rate = {name: letters / seconds for name, seconds in took.items()}
        versus(f"kafka-replay-{share}", "letters/s", rate["ours"], "java", rate["java"], goal)
        if every == 1:
            versus("kafka-replay-kcat", "letters/s", rate["ours"], "kcat | kcat", rate["kcat"], 0.35)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    bound("kafka-replay-memory", "MiB", peak, 150)


async def kafka_index(broker: Broker, letters: int) -> None:
    """Build the letter index of a box, and measure how long that blocks the event loop."""
    dead = f"bench-{uuid.uuid4().hex[:8]}"
    await broker.ensure(BoxSpec(dead, 3))
    await fill(broker, dead, letters, 3)
    worst = asyncio.ensure_future(longest_block_ms())
    monitor = broker.monitor()
    begun = time.monotonic()
    depth = 0
    while depth < letters:
        found = (await monitor.sweep([MonitoredBox(dead, f"{dead}.ledger")], 0))[dead]
        if isinstance(found, BrokerError):
            raise found
        depth = found.depth
    versus("kafka-register-tail", "letters/s", letters / (time.monotonic() - begun), "bound", 20_000, 1.0)
    worst.cancel()
    bound("kafka-register-hold", "ms", await worst, 10)
    await monitor.close()


async def longest_block_ms() -> float:
    """Return the longest time in ms that the event loop was blocked, when cancelled; also print its CPU time."""
    longest = worked = 0.0
    try:
        while True:
            before, used = time.monotonic(), time.thread_time()
            await asyncio.sleep(0)
            longest, worked = max(longest, time.monotonic() - before), max(worked, time.thread_time() - used)
    except asyncio.CancelledError:
        progress(f"event loop blocked for {1_000 * longest:.1f} ms, CPU time at most {1_000 * worked:.1f} ms")
        return longest * 1_000


async def kafka_stall(broker: Broker, servers: str, seconds: int) -> None:
    """Measure how long a read_committed consumer waits for a plain message while a Replay at 100/s writes there."""
    connection = {"kafka": {"bootstrapServers": [servers]}}
    scene = await Scene(broker, f"bench-{uuid.uuid4().hex[:8]}", connection).build()
    await scene.bury(*(dead_letter(number, scene.name) for number in range(100 * seconds)))
    producer, consumer = (kind(bootstrap_servers=servers, **more) for kind, more in CLIENTS)
    async with producer, consumer:
        place = TopicPartition(scene.name, 0)
        consumer.assign([place])
        await consumer.seek_to_end(place)
        replaying = asyncio.ensure_future(scene.replay(rate={"perSecond": 100}))
        waits = asyncio.ensure_future(longest_wait(consumer))
        while not replaying.done():
            await producer.send_and_wait(scene.name, struct.pack("d", time.monotonic()), b"plain", partition=0)
            await asyncio.sleep(0.01)
        await producer.send_and_wait(scene.name, b"", b"end", partition=0)
        progress(f"the replay at 100/s: {(await replaying).reason}")
        bound("kafka-replay-stall", "ms", 1_000 * await waits, 600)


async def longest_wait(consumer: AIOKafkaConsumer) -> float:
    """Return the longest time in seconds between sending and reading a plain message."""
    longest = 0.0
    async for record in consumer:
        if record.key == b"end":
            break
        if record.key == b"plain":
            longest = max(longest, time.monotonic() - struct.unpack("d", record.value)[0])
    return longest


async def kafka_sweep(broker: Broker, queues: int) -> None:
    """Measure the sweep of many queues with three partitions in which nothing changed."""
    names = [f"bench-{uuid.uuid4().hex[:8]}" for _ in range(queues)]
    for name in names:
        await broker.ensure(BoxSpec(name, 3))
    monitor = broker.monitor()
    boxes = [MonitoredBox(name, f"{name}.ledger") for name in names]
    seconds = []
    for _ in range(4):
        begun = time.monotonic()
        await monitor.sweep(boxes, 0)
        seconds.append(time.monotonic() - begun)
    await monitor.close()
    bound(f"kafka-sweep-{queues}x3", "s", statistics.median(seconds[1:]), 5.0)


async def main(letters: int, rounds: int, queues: int) -> None:
    """Measure every part on a test bed of its own."""
    tune_gc()  # as every replayer does
    tune_malloc()
    bed = beds.create()
    try:
        servers = await asyncio.to_thread(peers.full_kafka, bed)
        async with connect(kafka={"bootstrapServers": [servers]}) as broker:
            await kafka_replays(broker, servers, bed, letters, rounds)
            await kafka_index(broker, letters // 4)
            await kafka_stall(broker, servers, 10)
            await kafka_sweep(broker, queues)
    finally:
        bed.down()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queues", type=int, default=500)
    options = parser.parse_args()
    uvloop.run(main(options.letters, options.rounds, options.queues))
