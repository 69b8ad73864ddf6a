"""The operator changes and deletes only boxes that it created or that were given to it explicitly."""

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import pytest
import redis as driver
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from deadletter.brokers.connect import open_broker
from deadletter.brokers.redis import keys
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until
from tests.controller.test_boxes import ask, configs

TAKE_OVER, CONFIRM, FORCE = (f"deadletter.dev/{name}" for name in ("take-over", "confirm-delete", "force-delete"))
FOREIGN_RETENTION_MS = "7777777"


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def plain(box: str, **more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": box}, "deletionPolicy": "Delete"} | more


def records(kube: KubeNamespace) -> dict[str, tuple[str, bool]]:
    """Id and found of every recorded box."""
    status = kube.get("dlq", "orders").get("status", {})
    return {one["name"]: (one.get("id", ""), one.get("found", False)) for one in status.get("ownedBoxes", ())}


class Admin(Protocol):
    """A broker as its administrator uses it."""

    def connect(self, kube: KubeNamespace) -> None: ...
    def make(self, name: str) -> None: ...
    def drop(self, name: str) -> None: ...
    def has(self, name: str) -> bool: ...
    def id_of(self, name: str) -> str: ...
    def is_untouched(self, name: str) -> bool: ...


class KafkaAdmin:
    def __init__(self, address: str) -> None:
        self.address = address

    def connect(self, kube: KubeNamespace) -> None:
        kube.kafka(self.address)

    def make(self, name: str) -> None:
        kept = {"retention.ms": FOREIGN_RETENTION_MS}
        ask(self.address, lambda admin: admin.create_topics([NewTopic(name, 1, 1, topic_configs=kept)]))

        async def produce() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.address) as producer:
                await producer.send_and_wait(name, b"not ours")

        asyncio.run(produce())

    def drop(self, name: str) -> None:
        ask(self.address, lambda admin: admin.delete_topics([name]))
        wait_until("deleted", lambda: not self.has(name))

    def has(self, name: str) -> bool:
        return name in ask(self.address, lambda admin: admin.list_topics())

    def id_of(self, name: str) -> str:
        async def asked() -> str:
            async with open_broker(kafka_at(self.address), no_secrets, LOOPBACK) as broker:
                return (await broker.describe([name]))[name].id

        return asyncio.run(asked())

    def is_untouched(self, name: str) -> bool:
        return self.has(name) and configs(self.address, name)["retention.ms"] == FOREIGN_RETENTION_MS


class RedisAdmin:
    def __init__(self, address: str) -> None:
        self.address, self.client = address, driver.Redis.from_url(address)

    def connect(self, kube: KubeNamespace) -> None:
        kube.redis(self.address)

    def make(self, name: str) -> None:
        self.client.xadd(name, {"value": b"not ours"})

    def drop(self, name: str) -> None:
        self.client.delete(name, keys.identity(name))

    def has(self, name: str) -> bool:
        return bool(self.client.exists(name))

    def id_of(self, name: str) -> str:
        return (self.client.get(keys.identity(name)) or b"").decode()

    def is_untouched(self, name: str) -> bool:
        return bool(self.client.xlen(name) == 1)


@pytest.fixture(params=["kafka", "redis"])
def admin_client(request: pytest.FixtureRequest) -> Admin:
    address = request.getfixturevalue(request.param)
    return KafkaAdmin(address) if request.param == "kafka" else RedisAdmin(address)


def test_a_box_of_another_team_is_neither_changed_nor_deleted(
    kube: KubeNamespace, operator: OperatorProcess, admin_client: Admin
) -> None:
    dead = fresh("payments")
    admin_client.make(dead)
    admin_client.connect(kube)
    kube.apply("DeadLetterQueue", "orders", plain(dead, dead={"name": dead, "retention": "1h"}))
    condition = kube.wait_for_condition("dlq", "orders", "Ready", "False", "BoxConflict")
    for remedy in (dead, "dead.name", "dead.adopt", f"annotate dlq/orders '{TAKE_OVER}={dead}'"):
        assert remedy in condition["message"]
    assert admin_client.is_untouched(dead)
    assert records(kube) == {}
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    assert admin_client.is_untouched(dead)


def test_a_created_box_is_recorded_with_its_id_and_goes_with_its_queue(
    kube: KubeNamespace, operator: OperatorProcess, admin_client: Admin
) -> None:
    dead = fresh("dead")
    admin_client.connect(kube)
    kube.apply("DeadLetterQueue", "orders", plain(dead))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert admin_client.id_of(dead)
    assert records(kube) == {dead: (admin_client.id_of(dead), False), f"{dead}.ledger": ("", False)}
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    assert not admin_client.has(dead)


def test_a_retained_box_is_taken_over_by_annotation_and_deleted_after_a_confirmation(
    kube: KubeNamespace, operator: OperatorProcess, admin_client: Admin
) -> None:
    dead = fresh("dead")
    admin_client.connect(kube)
    kube.apply("DeadLetterQueue", "orders", plain(dead, deletionPolicy="Retain"))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    kube.apply("DeadLetterQueue", "orders", plain(dead, dead={"name": dead, "retention": "24h"}))
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "BoxConflict")
    kube.kubectl("annotate", "dlq", "orders", f"{TAKE_OVER}={dead}")
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert records(kube)[dead] == (admin_client.id_of(dead), True)
    if isinstance(admin_client, KafkaAdmin):
        assert configs(admin_client.address, dead)["retention.ms"] == "86400000"
    wait_until("it works once", lambda: TAKE_OVER not in kube.get("dlq", "orders")["metadata"].get("annotations", {}))
    wait_until("an Event", lambda: "BoxesTakenOver" in kube.kubectl("get", "events"))
    kube.kubectl("delete", "dlq", "orders", "--wait=false")
    condition = kube.wait_for_condition("dlq", "orders", "Ready", "False", "DeletionBlocked")
    assert f"{CONFIRM}=true" in condition["message"]
    assert f"{FORCE}=true" in condition["message"]
    assert admin_client.has(dead)
    kube.kubectl("annotate", "dlq", "orders", f"{CONFIRM}=true")
    wait_until("confirmed", lambda: not kube.get("dlq", "orders"))
    assert not admin_client.has(dead)


def test_a_box_that_others_created_again_is_not_touched(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], admin_client: Admin
) -> None:
    dead = fresh("dead")
    admin_client.connect(kube)
    operator = start().wait_until_ready()
    kube.apply("DeadLetterQueue", "orders", plain(dead, dead={"name": dead, "retention": "1h"}))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    operator.stop()
    admin_client.drop(dead)
    admin_client.make(dead)
    operator.start().wait_until_ready()
    condition = kube.wait_for_condition("dlq", "orders", "Ready", "False", "BoxConflict")
    assert "created again by others" in condition["message"]
    assert admin_client.is_untouched(dead)
    kube.kubectl("delete", "dlq", "orders", "--timeout=120s")
    assert admin_client.is_untouched(dead)


def test_boxes_of_0_2_0_are_recorded_as_found_and_deleted_after_a_confirmation(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], admin_client: Admin
) -> None:
    """0.2.0 kept no records, and its CRD prunes them: the same after a rollback and a second upgrade."""
    dead, status = fresh("dead"), ("--subresource=status", "--type=merge", "-p")
    admin_client.connect(kube)
    operator = start().wait_until_ready()
    kube.apply("DeadLetterQueue", "orders", plain(dead))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    operator.stop()
    kube.kubectl("patch", "dlq", "orders", *status, json.dumps({"status": {"ownedBoxes": None}}))
    if isinstance(admin_client, RedisAdmin):
        admin_client.client.delete(keys.identity(dead))
    operator.start().wait_until_ready()
    wait_until("recorded", lambda: records(kube).get(dead) == (admin_client.id_of(dead), True))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    kube.kubectl("delete", "dlq", "orders", "--wait=false")
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "DeletionBlocked")
    assert admin_client.has(dead)
    kube.kubectl("annotate", "dlq", "orders", f"{CONFIRM}=true")
    wait_until("confirmed", lambda: not kube.get("dlq", "orders"))
    assert not admin_client.has(dead)


def test_a_box_created_just_before_a_crash_is_ours(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], admin_client: Admin
) -> None:
    """The record was stored, the box created, and the operator killed before it could store the id."""
    dead = fresh("dead")
    admin_client.connect(kube)
    operator = start().wait_until_ready()
    kube.apply("DeadLetterQueue", "orders", plain(dead))
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    operator.stop()
    intent = {"ownedBoxes": [{"name": dead}, {"name": f"{dead}.ledger"}], "conditions": None, "depth": None}
    kube.kubectl("patch", "dlq", "orders", "--subresource=status", "--type=merge", "-p", json.dumps({"status": intent}))
    operator.start().wait_until_ready()
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert records(kube)[dead] == (admin_client.id_of(dead), False)


def test_a_topic_that_others_created_for_the_queue_is_deleted_after_a_confirmation(
    kube: KubeNamespace, operator: OperatorProcess, kafka: str
) -> None:
    admin_client, dead = KafkaAdmin(kafka), fresh("dead")
    admin_client.connect(kube)
    kube.apply("DeadLetterQueue", "orders", plain(dead, dead={"name": dead, "replicationFactor": 3}))
    kube.wait_for_condition("dlq", "orders", "BoxesReady", "False")
    wait_until("recorded", lambda: records(kube).get(dead) == ("", True))
    admin_client.make(dead)
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    assert records(kube)[dead] == (admin_client.id_of(dead), True)


def test_a_queue_with_a_box_conflict_gets_no_courier(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    source = fresh("orders")
    spec = {"brokerRef": {"name": "broker"}, "source": {"name": source, "group": "billing"}}
    spec |= {"delivery": {"http": {"url": "http://billing.example/orders"}}}
    with driver.Redis.from_url(redis) as client:
        client.hset(f"{{{source}}}.billing.dlq.retry", "field", "of another program")
        kube.redis(redis)
        kube.apply("DeadLetterQueue", "orders", spec)
        condition = kube.wait_for_condition("dlq", "orders", "Ready", "False", "BoxConflict")
        assert "dead.adopt" not in condition["message"]
        assert not kube.get("deployment", "orders-courier")
        assert client.exists(f"{{{source}}}.billing.dlq") == 0
