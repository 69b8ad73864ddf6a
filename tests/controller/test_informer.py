"""Informer: indexes, old versions and successors of the same name."""

from typing import Any

from deadletter.controller.state.dependents import BY_BROKER, BY_DEAD_NAME, BY_ROUTE_TARGET, QUEUE_INDEXES
from deadletter.controller.state.informer import Informer, InformerSpec
from deadletter.kube import QUEUES, Body


def body(name: str, version: int, uid: str = "u", **spec: Any) -> Body:
    meta = {"namespace": "shop", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"brokerRef": {"name": "kafka"}, "dead": {"name": f"{name}.dead"}} | spec}


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": "true", "queueRef": {"name": name}} for name in names]


def queue_informer() -> Informer:
    return Informer(InformerSpec(QUEUES, "", QUEUE_INDEXES), lambda *_: None)


def names_of(bodies: list[Body]) -> list[str]:
    return [one["metadata"]["name"] for one in bodies]


def test_an_object_is_found_by_its_current_references() -> None:
    queues = queue_informer()
    queues.upsert(body("a", 1, routes=routes("c")))
    queues.upsert(body("b", 2, routes=routes("c", "d")))
    assert names_of(queues.by_index(BY_BROKER, "shop", "kafka")) == ["a", "b"]
    assert names_of(queues.by_index(BY_ROUTE_TARGET, "shop", "c")) == ["a", "b"]
    queues.upsert(body("b", 3, routes=routes("d")))
    assert names_of(queues.by_index(BY_ROUTE_TARGET, "shop", "c")) == ["a"]
    assert names_of(queues.by_index(BY_DEAD_NAME, "b.dead")) == ["b"]
    queues.remove(body("b", 4))
    assert queues.by_index(BY_DEAD_NAME, "b.dead") == []
    assert queues.by_index(BY_ROUTE_TARGET, "shop", "d") == []


def test_a_default_dead_box_is_found_by_its_name_on_kafka_and_on_redis() -> None:
    queues = queue_informer()
    queues.upsert(body("a", 1, dead={}, source={"name": "orders", "group": "billing"}))
    assert names_of(queues.by_index(BY_DEAD_NAME, "orders.billing.dlq")) == ["a"]
    assert names_of(queues.by_index(BY_DEAD_NAME, "{orders}.billing.dlq")) == ["a"]


def test_an_older_version_and_the_deletion_of_a_predecessor_change_nothing() -> None:
    queues = queue_informer()
    queues.upsert(body("a", 5, routes=routes("c")))
    queues.upsert(body("a", 4))
    assert names_of(queues.by_index(BY_ROUTE_TARGET, "shop", "c")) == ["a"]
    queues.remove(body("a", 6, uid="another"))
    assert queues.get("shop", "a") is not None
