"""Each error of a broker or of the API server is reported with its own reason."""

import asyncio
import json
import uuid

import pytest
import redis as driver

from deadletter.brokers import errors
from deadletter.brokers.connect import open_broker
from deadletter.controller.reconcile.boxes import to_finding
from deadletter.core.box_types import BoxSpec
from deadletter.core.reasons import Reason
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import box_names, numbered_messages, publish_all
from tests.brokers.test_kafka_partition_writer import replay_all
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.LedgerCorrupt("mark/x: bad checksum"), Reason.LedgerCorrupt),
        (errors.LedgerTooNew("settled/x: version 2"), Reason.LedgerTooNew),
        (errors.NotSupported("no"), Reason.NotSupported),
        (errors.NotAuthorised("no"), Reason.NotAuthorised),
        (errors.BoxRecreated("no"), Reason.BoxRecreated),
        (errors.BoxConflict("x: it has 5 partitions; Kafka cannot shrink to 3"), Reason.PartitionShrinkRefused),
        (errors.BoxConflict("x: another kind"), Reason.BoxConflict),
        (errors.BrokerError("whatever"), Reason.BoxRefused),
    ],
)
def test_each_broker_error_has_its_reason(error: errors.BrokerError, reason: Reason) -> None:
    found = to_finding(error)
    assert (found.reason, found.message, found.is_transient) == (reason, str(error), error.is_transient)


def test_the_message_of_an_unreachable_broker_contains_no_address() -> None:
    assert "10.0.0.7" not in to_finding(errors.BrokerUnreachable("10.0.0.7:9092 refused")).message


def test_a_forbidden_address_is_reported(kube: KubeNamespace, operator: OperatorProcess) -> None:
    kube.redis("redis://169.254.169.254:6379/0")
    found = kube.wait_for_condition("bkc", "broker", "Ready", "False", "AddressForbidden")
    assert "allowAddresses" in found["message"]


def test_a_corrupt_ledger_is_reported_until_it_is_repaired(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    kube.redis(redis)
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "dead": {"name": dead}})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    with driver.Redis.from_url(redis) as client:
        client.hset(f"{dead}.ledger", "tally/uid-1/0", b"\x01nonsense")
        found = kube.wait_for_condition("dlq", "orders", "BoxesReady", "False", "LedgerCorrupt")
        assert "tally/uid-1/0" in found["message"]
        assert kube.condition("dlq", "orders", "Stalled")["status"] == "True"
        kube.apply("Replay", "back", {"queueRef": {"name": "orders"}})
        kube.wait_for_condition("rply", "back", "Succeeded", "Unknown", "QueueNotReady")
        client.hdel(f"{dead}.ledger", "tally/uid-1/0")
    kube.wait_for_condition("dlq", "orders", "Ready", "True")


def test_a_recreated_box_waits_for_the_reset_annotation(
    kube: KubeNamespace, operator: OperatorProcess, kafka: str
) -> None:
    boxes = box_names(fresh_name("recreated"))
    kube.kafka(kafka)
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "dead": {"name": boxes.dead}})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")

    async def settle_and_drop() -> None:
        async with open_broker(kafka_at(kafka), no_secrets, LOOPBACK) as broker:
            await broker.ensure(BoxSpec(boxes.target, 1))
            await publish_all(broker, boxes.dead, numbered_messages(3))
            await replay_all(broker, boxes)
            await broker.delete([boxes.dead])

    asyncio.run(settle_and_drop())
    found = kube.wait_for_condition("dlq", "orders", "BoxesReady", "False", "BoxRecreated")
    assert "was created again" in found["message"]
    kube.kubectl("annotate", "dlq", "orders", "deadletter.dev/reset-ledger=true")
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert "deadletter.dev/reset-ledger" not in kube.get("dlq", "orders")["metadata"].get("annotations", {})


def test_an_unsupported_field_is_reported(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    kube.apply("BrokerConnection", "many", {"redis": {"url": redis, "mode": "Cluster"}})
    found = kube.wait_for_condition("bkc", "many", "Stalled", "True", "NotSupportedYet")
    assert "spec.redis.mode" in found["message"]


def test_a_refused_child_is_reported(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    quota |= {"spec": {"hard": {"count/deployments.apps": "0"}}}
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(quota))
    wait_until("the quota holds", lambda: kube.get("resourcequota", "none").get("status", {}).get("hard"))
    kube.redis(redis)
    source = {"name": f"orders-{uuid.uuid4().hex[:8]}", "group": "billing"}
    http = {"http": {"url": "http://billing.example/"}}
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "source": source, "delivery": http})
    found = kube.wait_for_condition("dlq", "orders", "CourierAvailable", "False", "ApplyRefused")
    assert "exceeded quota" in found["message"]
    kube.kubectl("delete", "resourcequota", "none")
    kube.wait_for_condition("dlq", "orders", "CourierAvailable", "False", "WaitingForCourier")
