"""Batches in a Kafka log that cannot be decoded: their bytes are buried, and later messages are delivered."""

from collections import Counter

import pytest

from deadletter.core.letters import Message
from tests.bed import beds
from tests.brokers.corrupting import CORRUPTIONS, Corruption, corrupt_batch
from tests.helpers.headers import read_own_envelope
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import message
from tests.workers.http_service import serving, until


@pytest.mark.parametrize("queue", ["kafka"], indirect=True)
@pytest.mark.parametrize("change", CORRUPTIONS, ids=lambda change: change.__name__)
async def test_an_undecodable_batch_is_buried_unchanged_and_does_not_block_others(
    queue: BrokerQueue, bed: beds.Bed, change: Corruption
):
    poison = Message(b"same", b"poison", (("header-name", b"v"),), 1_700_000_000_000)
    await queue.send(*(message(f"before-{n}", "same") for n in range(3)))
    await queue.send(poison, message("lost with it", "same"))
    await queue.send(*(message(f"after-{n}", "same") for n in range(3)), *(message(f"k{n}", f"k{n}") for n in range(9)))
    logs = (bed.directory / "kafka" / "log").glob(f"{queue.prefix}orders-*/*.log")
    (log,) = (one for one in logs if b"poison" in one.read_bytes())
    spoiled = corrupt_batch(log, change)
    healthy = [f"{when}-{n}" for when in ("before", "after") for n in range(3)] + [f"k{n}" for n in range(9)]
    async with serving() as service:
        assignment = queue.assignment(service.url)
        async with queue.courier(assignment):
            (letter,) = await queue.until_buried(1)
            await until(lambda: len(service.received) >= len(healthy))
        async with queue.courier(assignment, "pod-1"):  # all of it is settled: nothing comes again
            await queue.send(message("last", "same"))
            await until(lambda: b"last" in service.bodies)
    assert Counter(service.bodies) == Counter(one.encode() for one in (*healthy, "last"))
    assert [one.message for one in await queue.buried()] == [letter.message]
    assert letter.message.value == spoiled
    envelope = read_own_envelope(letter.message)
    assert envelope is not None
    assert (envelope.reason, envelope.failure.type, envelope.origin.offset) == ("Undecodable", "UndecodableBatch", 3)
    assert "offsets 3 to 4" in envelope.failure.message
