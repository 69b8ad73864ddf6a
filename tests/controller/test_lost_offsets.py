"""Lost offsets of a consumer group: reported by the operator, and resumed once where a user says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.lost_offsets import RESUME_FROM_ANNOTATION
from deadletter.brokers.types import SubscriptionSpec
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.names import dead_box_name, ledger_name, retry_box_name
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets, redis_at
from tests.brokers.group_deletion import delete_group
from tests.brokers.helpers import claim_some, numbered_messages, publish_all, settle_all
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


@dataclass
class Queue:
    """A delivered queue on a real broker; the test subscribes in place of a courier."""

    kube: KubeNamespace
    spec: BrokerConnectionSpec
    source: str
    group: str  # unique, because couriers of other tests are members of "billing" on the same broker

    def ask(self, work: Callable[[Broker], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            async with open_broker(self.spec, no_secrets, LOOPBACK) as broker:
                return await work(broker)

        return asyncio.run(connected())

    def apply(self) -> None:
        http = {"url": "http://billing.example/orders"}
        spec = {"source": {"name": self.source, "group": self.group}, "delivery": {"http": http}}
        self.kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}} | spec)
        wait_until("courier", lambda: self.kube.get("deployment", "orders-courier"))

    def subscription_spec(self, has_started: bool = False) -> SubscriptionSpec:
        dead = dead_box_name(self.source, self.group, self.spec.is_redis)
        return SubscriptionSpec(
            self.source, self.group, dead, retry_box_name(dead), ledger_name(dead), "pod-0", True, has_started
        )

    def work(self) -> None:
        """Settle three messages and report until the operator has seen it, then send three more."""

        async def work(broker: Broker) -> None:
            await publish_all(broker, self.source, numbered_messages(3))
            async with broker.subscribe(self.subscription_spec()) as subscription:
                await settle_all(subscription, await claim_some(subscription, 3))
                while not self.status().get("consumerGroup"):
                    await subscription.report_status(WorkerStatus("pod-0", at=now_ms()))
                    await asyncio.sleep(0.2)
            await publish_all(broker, self.source, numbered_messages(3, 3))

        self.ask(work)

    def lose_offsets(self) -> None:
        """Delete the group; the annotation makes the operator reconcile now, otherwise it does so every 30 s."""
        self.ask(lambda broker: delete_group(broker, self.source, self.group))
        self.kube.kubectl("annotate", "dlq", "orders", "example.com/look=now")

    def status(self) -> dict[str, Any]:
        return self.kube.get("dlq", "orders").get("status", {})

    def assignment(self) -> dict[str, Any]:
        return json.loads(self.kube.get("configmap", "orders-courier")["data"]["assignment.json"])

    def template(self) -> dict[str, Any]:
        return self.kube.get("deployment", "orders-courier")["spec"]["template"]

    def resume(self, value: str) -> None:
        self.kube.kubectl("annotate", "dlq", "orders", f"{RESUME_FROM_ANNOTATION}={value}")

    def until_consumed(self) -> None:
        wait_until(
            "consumed",
            lambda: RESUME_FROM_ANNOTATION not in self.kube.get("dlq", "orders")["metadata"].get("annotations", {}),
        )

    def events(self, reason: str) -> list[dict[str, Any]]:
        chosen = f"involvedObject.name=orders,reason={reason}"
        return json.loads(self.kube.kubectl("get", "events", "-o", "json", "--field-selector", chosen))["items"]

    def next_values(self, count: int) -> list[bytes | None]:
        """Return the first values that a courier gets that starts now."""

        async def work(broker: Broker) -> list[bytes | None]:
            async with broker.subscribe(self.subscription_spec(has_started=True)) as subscription:
                return [claim.message.value for claim in await claim_some(subscription, count)]

        return self.ask(work)


@pytest.fixture(params=["kafka", "redis"])
def queue(request: pytest.FixtureRequest, kube: KubeNamespace) -> Queue:
    """The objects, before an operator runs."""
    address = request.getfixturevalue(request.param)
    (kube.kafka if request.param == "kafka" else kube.redis)(address)
    spec = {"kafka": kafka_at, "redis": redis_at}[request.param](address)
    made = Queue(kube, spec, fresh_name("orders"), fresh_name("billing"))
    made.ask(lambda broker: broker.ensure(BoxSpec(made.source, 1)))
    return made


def lost(kube: KubeNamespace) -> dict[str, Any]:
    return kube.wait_for_condition("dlq", "orders", "Ready", "False", "GroupOffsetsLost")


def test_a_started_group_is_stored_without_a_rollout(queue: Queue, operator: OperatorProcess) -> None:
    queue.apply()
    assert "consumerGroup" not in queue.status()
    assert queue.assignment()["group_started"] is False
    before = queue.template()
    queue.work()
    group = queue.status()["consumerGroup"]
    assert (group["name"], group["source"]) == (queue.group, queue.source)
    wait_until("stored", lambda: queue.assignment()["group_started"])
    assert queue.template() == before
    operator.stop()
    operator.start().wait_until_ready()
    wait_until("still stored", lambda: queue.assignment()["group_started"])
    assert queue.status()["consumerGroup"] == group


@pytest.mark.parametrize(("value", "first"), [("Earliest", b"v0"), ("Latest", b"v6"), ("2001-01-01T00:00:00Z", b"v0")])
def test_lost_offsets_are_reported_and_resumed_once(
    queue: Queue, operator: OperatorProcess, kube: KubeNamespace, value: str, first: bytes
) -> None:
    queue.apply()
    queue.work()
    queue.lose_offsets()
    condition = lost(kube)
    assert queue.group in condition["message"]
    assert queue.source in condition["message"]
    assert RESUME_FROM_ANNOTATION in condition["message"]
    assert kube.condition("dlq", "orders", "CourierAvailable")["reason"] == "GroupOffsetsLost"
    (event,) = wait_until("event", lambda: queue.events("GroupOffsetsLost"))  # it follows the condition
    assert event["type"] == "Warning"
    queue.resume(value)
    queue.until_consumed()
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "WaitingForCourier")
    (event,) = queue.events("GroupResumed")
    assert event["type"] == "Normal"
    assert f"from {value}" in event["message"]
    queue.ask(lambda broker: publish_all(broker, queue.source, numbered_messages(1, 6)))
    assert queue.next_values(1) == [first]
    queue.resume(value)
    queue.until_consumed()
    assert len(queue.events("GroupResumed")) == 1
    assert "has its offsets" in queue.events("ResumeIgnored")[0]["message"]


def test_an_invalid_value_is_removed_and_reported(queue: Queue, operator: OperatorProcess, kube: KubeNamespace) -> None:
    queue.apply()
    queue.resume("Latest")
    queue.until_consumed()
    (early,) = queue.events("ResumeIgnored")
    assert "has started yet" in early["message"]
    queue.work()
    queue.lose_offsets()
    lost(kube)
    queue.resume("yesterday")
    queue.until_consumed()
    (event,) = [one for one in queue.events("ResumeIgnored") if "yesterday" in one["message"]]
    assert event["type"] == "Warning"
    assert "Earliest, Latest and a time" in event["message"]
    assert lost(kube)


def test_an_operator_that_was_killed_after_the_resume_only_removes_the_annotation(
    queue: Queue, operator: OperatorProcess, kube: KubeNamespace
) -> None:
    queue.apply()
    queue.work()
    queue.lose_offsets()
    lost(kube)
    operator.stop()
    queue.ask(lambda broker: broker.resume_group(queue.source, queue.group, "Latest"))
    queue.ask(lambda broker: publish_all(broker, queue.source, numbered_messages(1, 6)))
    queue.resume("Earliest")
    operator.start().wait_until_ready()
    queue.until_consumed()
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "WaitingForCourier")
    assert queue.next_values(1) == [b"v6"]
