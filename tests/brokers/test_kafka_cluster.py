"""The contract on a real Kafka of three brokers, and what only several brokers can show."""

from deadletter.brokers.contract import Broker
from deadletter.clock import now_ms
from deadletter.core.heartbeats import WorkerStatus
from tests.brokers.broker_contract import BrokerContract
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import make_boxes

BROKER = "kafka_cluster"


class TestKafkaCluster(BrokerContract):
    """Three brokers with replicated topics keep the contract."""


async def test_a_ledger_that_was_just_created_is_written_at_once(broker: Broker) -> None:
    """Brokers hear of a new topic one after the other, and each question goes to any of them."""
    for _ in range(30):
        boxes = await make_boxes(broker, fresh_name("new"))
        await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", WorkerStatus("redrive-0", at=now_ms()))
