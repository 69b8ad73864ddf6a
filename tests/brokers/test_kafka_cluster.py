"""The broker contract on a Kafka cluster of three brokers, and behaviour that needs several brokers."""

from deadletter.brokers.contract import Broker
from deadletter.core.heartbeats import WorkerStatus
from deadletter.wall_clock import now_ms
from tests.brokers.broker_contract import BrokerContract
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import make_boxes

BROKER = "kafka_cluster"


class TestKafkaCluster(BrokerContract):
    """Three brokers with replicated topics fulfil the contract."""


async def test_a_new_ledger_can_be_written_at_once(broker: Broker) -> None:
    """Brokers learn of a new topic one after the other, and each request may go to any of them."""
    for _ in range(30):
        boxes = await make_boxes(broker, fresh_name("new"))
        await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", WorkerStatus("redrive-0", at=now_ms()))
