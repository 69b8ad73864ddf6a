"""Worker statuses in the ledger topic: all of a process share one producer id."""

import struct

from deadletter.brokers.contract import Broker
from deadletter.core.heartbeats import WorkerStatus
from tests.bed import beds
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import make_boxes

BROKER = "kafka"
NO_PRODUCER_ID = -1


async def test_the_statuses_of_a_worker_share_one_producer_id(broker: Broker, bed: beds.Bed) -> None:
    boxes = await make_boxes(broker, fresh_name("status"))
    async with broker.subscribe(boxes.subscription()) as subscription:
        for n in range(5):
            await subscription.report_status(WorkerStatus("pod-0", at=n))
            await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", WorkerStatus("redrive-0", at=n))
    (log,) = (bed.directory / "kafka" / "log").glob(f"{boxes.ledger}-0/*.log")
    ids = producer_ids(log.read_bytes())
    assert len(ids) >= 11  # ten statuses and the tombstone
    assert len(set(ids) - {NO_PRODUCER_ID}) == 1


def producer_ids(log: bytes) -> list[int]:
    """Return the producer id of every record batch in a log segment."""
    found, at = [], 0
    while at + 61 <= len(log) and (length := struct.unpack_from(">i", log, at + 8)[0]):
        found.append(struct.unpack_from(">q", log, at + 43)[0])
        at += 12 + length
    return found
