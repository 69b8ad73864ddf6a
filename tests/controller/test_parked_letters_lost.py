"""Parked letters that are deleted from the retry box are counted and reported, also after a restart."""

import asyncio
import json
import re
from collections.abc import Callable

from aiokafka import TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete

from deadletter.brokers.connect import open_broker
from deadletter.brokers.types import Parked
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import Boxes, claim_some, numbered_messages, publish_all
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until
from tests.controller.test_boxes import ask


async def park(kafka: str, boxes: Boxes, count: int) -> None:
    """Park as many letters, as a courier does; there is no node that runs one."""
    async with open_broker(kafka_at(kafka), no_secrets, LOOPBACK) as broker:
        await publish_all(broker, boxes.source, numbered_messages(count))
        async with broker.subscribe(boxes.subscription()) as subscription:
            claims = await claim_some(subscription, count)
            await asyncio.gather(
                *(subscription.settle(one, Parked(one.message, now_ms() + 3_600_000)) for one in claims)
            )


def shows(operator: OperatorProcess, metric: str, value: int) -> bool:
    return re.search(rf"^{metric}{{.*}} {value}.0$", operator.metrics(), re.MULTILINE) is not None


def test_lost_parked_letters_are_reported_and_stay_in_the_status(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], kafka: str
) -> None:
    source, group = fresh_name("source"), fresh_name("billing")
    ask(kafka, lambda admin: admin.create_topics([NewTopic(source, 1, 1)]))
    kube.kafka(kafka)
    delivery = {"http": {"url": "http://billing.example/"}}
    spec = {"brokerRef": {"name": "broker"}, "source": {"name": source, "group": group}, "delivery": delivery}
    kube.apply("DeadLetterQueue", "orders", spec)
    operator = start().wait_until_ready()
    kube.wait_for_condition("dlq", "orders", "BoxesReady", "True")
    names = kube.get("dlq", "orders")["status"]["boxes"]
    boxes = Boxes(source, names["dead"], names["retry"], names["ledger"], "", group)
    asyncio.run(park(kafka, boxes, 5))
    wait_until("parked", lambda: shows(operator, "dlq_queue_retries_parked", 5))
    gone = {TopicPartition(boxes.retry, 0): RecordsToDelete(3)}
    ask(kafka, lambda admin: admin.delete_records(gone))
    found = kube.wait_for_condition("dlq", "orders", "Degraded", "True", "ParkedLettersLost")
    assert found["message"].startswith("3 parked letters were deleted from the retry box")
    assert kube.get("dlq", "orders")["status"]["lostParkedLetters"] == 3
    wait_until("events", lambda: [one["reason"] for one in events(kube)].count("ParkedLettersLost") == 1)
    operator.stop()
    again = start().wait_until_ready()
    wait_until("metric", lambda: shows(again, "dlq_queue_parked_letters_lost", 3))
    ask(kafka, lambda admin: admin.delete_records({TopicPartition(boxes.retry, 0): RecordsToDelete(4)}))
    wait_until("one more", lambda: kube.get("dlq", "orders")["status"]["lostParkedLetters"] == 4)
    wait_until("events", lambda: [one["reason"] for one in events(kube)].count("ParkedLettersLost") == 2)
    assert kube.condition("dlq", "orders", "Degraded")["reason"] == "ParkedLettersLost"


def events(kube: KubeNamespace) -> list[dict[str, str]]:
    found = json.loads(kube.kubectl("get", "events", "-o", "json"))["items"]
    return [one for one in found if one["involvedObject"]["name"] == "orders"]
