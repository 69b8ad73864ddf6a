"""Topic ids, which the driver does not request."""

import asyncio
import re

from aiokafka.protocol.metadata import MetadataRequest_v5, MetadataResponse_v5

from deadletter.brokers.contract import Broker
from deadletter.brokers.kafka.topic_metadata import TopicMetadata, TopicMetadataRequest, read_topics
from deadletter.core.box_types import BoxSpec
from tests.bed import kafka as bed_kafka
from tests.bed import tools
from tests.brokers.connections import fresh_name

BROKER = "kafka"


async def test_the_id_is_the_one_that_kafka_topics_prints(broker: Broker, kafka: str) -> None:
    name = fresh_name("box")
    state = await broker.ensure(BoxSpec(name, 1))
    command = ("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka, "--describe", "--topic", name)
    output = await asyncio.to_thread(tools.run, bed_kafka.java(*command), timeout=120)
    assert re.findall(r"TopicId: (\S+)", output) == [state.id]


def test_a_broker_without_topic_ids_is_asked_in_the_older_version() -> None:
    request = TopicMetadataRequest(["orders"]).prepare({3: (0, 9)})
    assert (type(request), list(request.topics), request.allow_auto_topic_creation) == (
        MetadataRequest_v5, ["orders"], False,
    )  # fmt: skip
    response = MetadataResponse_v5(0, [], "cluster", 1, [(0, "orders", False, [(0, 0, 1, [1, 2], [1], [])])])
    assert read_topics(response) == [TopicMetadata(0, "orders", "", [(0, 1, [1, 2], [1])])]
