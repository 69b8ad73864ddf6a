"""Reads of a topic return committed messages only, in order, whatever else is in its log."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import TooLarge
from deadletter.brokers.kafka import fetch
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message
from deadletter.core.replay_progress import Span
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import numbered_messages, publish_all, read_all, values

BROKER = "kafka"
EMPTY_BATCH_BYTES = 61
Writer = Callable[..., AIOKafkaProducer]


@pytest.fixture
async def writer(kafka: str) -> AsyncIterator[Writer]:
    """Producers that are not ours."""
    started: list[AIOKafkaProducer] = []

    async def start(**options: object) -> AIOKafkaProducer:
        started.append(AIOKafkaProducer(bootstrap_servers=kafka, **options))
        await started[-1].start()
        return started[-1]

    yield start
    for producer in started:
        await producer.stop()


async def make_topic(broker: Broker, name: str) -> str:
    box = fresh_name(name)
    await broker.ensure(BoxSpec(box, 1))
    return box


async def write(producer: AIOKafkaProducer, box: str, *texts: bytes) -> None:
    await asyncio.gather(*[await producer.send(box, text, partition=0) for text in texts])


async def test_messages_of_aborted_transactions_are_skipped(broker: Broker, writer: Writer) -> None:
    box = await make_topic(broker, "aborted")
    one, other = await writer(transactional_id=f"{box}.1"), await writer(transactional_id=f"{box}.2")
    plain = await writer()
    await one.begin_transaction()
    await other.begin_transaction()
    await write(one, box, b"lost-0", b"lost-1")
    await write(other, box, b"kept-0")
    await write(plain, box, b"kept-1")
    await write(one, box, b"lost-2")
    await one.abort_transaction()
    await write(other, box, b"kept-2")
    await other.commit_transaction()
    await one.begin_transaction()
    await write(one, box, b"kept-3")
    await one.commit_transaction()
    assert await values(broker, box) == [b"kept-0", b"kept-1", b"kept-2", b"kept-3"]


async def test_a_read_waits_for_an_open_transaction(broker: Broker, writer: Writer) -> None:
    box = await make_topic(broker, "open")
    producer = await writer(transactional_id=box)
    await publish_all(broker, box, numbered_messages(1))
    await producer.begin_transaction()
    await write(producer, box, b"late")
    read = asyncio.ensure_future(values(broker, box))
    assert not (await asyncio.wait([read], timeout=0.2))[0]
    await producer.commit_transaction()
    assert await read == [b"v0", b"late"]


async def test_a_span_that_starts_and_ends_within_compressed_batches_is_read(broker: Broker, writer: Writer) -> None:
    box = await make_topic(broker, "packed")
    producer = await writer(compression_type="gzip", linger_ms=200)
    await write(producer, box, *(b"%d" % number for number in range(1_200)))
    read = [one async for batch in broker.read(box, [Span(0, 7, 1_100)]) for one in batch]
    assert [int(one.message.value or b"") for one in read] == list(range(7, 1_100))
    assert [one.place.offset for one in read] == list(range(7, 1_100))


async def test_messages_that_retention_deleted_are_left_out(broker: Broker, kafka: str) -> None:
    box = await make_topic(broker, "deleted")
    await publish_all(broker, box, numbered_messages(20))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.delete_records({TopicPartition(box, 0): RecordsToDelete(before_offset=15)})
    await admin.close()
    read = [one async for batch in broker.read(box, [Span(0, 3, 18)]) for one in batch]
    assert [one.message.value for one in read] == [b"v15", b"v16", b"v17"]


async def test_messages_of_several_fetches_are_in_order(broker: Broker) -> None:
    box = await make_topic(broker, "long")
    letters = [Message(b"%d" % number, b"x" * 2_000) for number in range(3 * fetch.FETCH_BYTES // 2_000)]
    await publish_all(broker, box, letters)
    assert [one.message.key for one in await read_all(broker, box)] == [one.key for one in letters]


def test_messages_before_a_corrupt_batch_are_read() -> None:
    def batch(first: int) -> bytearray:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        builder.append(0, 1, b"key", b"%d" % first, [])
        built = builder.build()
        built[:8] = first.to_bytes(8, "big")
        return bytearray(built)

    broken = batch(1)
    broken[-2] ^= 1
    found, position = fetch.select_committed(bytes(batch(0) + broken + batch(2)), [], 0)
    assert (len(found), position) == (1, 1)
    with pytest.raises(fetch.driver.CorruptRecordException):
        fetch.select_committed(bytes(broken + batch(2)), [], 1)


async def test_a_message_may_fill_the_limit_of_its_topic_to_the_byte(broker: Broker) -> None:
    box, limit = fresh_name("limit"), 3_000
    await broker.ensure(BoxSpec(box, 1, config={"max.message.bytes": str(limit)}))
    overhead = EMPTY_BATCH_BYTES + 2 + 4 + 2 + 1  # length; attributes, deltas, no key; length of the value; no headers
    await publish_all(broker, box, [Message(None, b"x" * (limit - overhead))])
    with pytest.raises(TooLarge):
        await publish_all(broker, box, [Message(None, b"x" * (limit - overhead + 1))])
    assert [len(value or b"") for value in await values(broker, box)] == [limit - overhead]
