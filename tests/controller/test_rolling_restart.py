"""Conditions while the brokers of a cluster restart one after the other."""

import signal
import uuid

from tests.bed.kafka_cluster import IDS, KafkaCluster
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


def test_no_condition_changes_while_the_brokers_restart_one_after_the_other(
    kube: KubeNamespace, operator: OperatorProcess, kafka_cluster: KafkaCluster
) -> None:
    defaults = {"partitions": 3, "replicationFactor": 3}
    connection = {"kafka": {"bootstrapServers": kafka_cluster.servers, "defaults": defaults}}
    kube.apply("BrokerConnection", "broker", connection)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "dead": {"name": dead}})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    wait_until("read", lambda: kube.get("dlq", "orders")["status"].get("depth") == 0)
    before = transitions(kube)
    for id_ in IDS:
        kafka_cluster.kill(id_, signal.SIGTERM)
        kafka_cluster.start(id_)
        kafka_cluster.wait_in_sync()
    assert transitions(kube) == before


def transitions(kube: KubeNamespace) -> dict[str, tuple[str, str, str]]:
    """Return status, reason and time of the last transition of every condition."""
    return {
        f"{kind}.{one['type']}": (one["status"], one["reason"], one["lastTransitionTime"])
        for kind, name in (("dlq", "orders"), ("brokerconnection", "broker"))
        for one in kube.get(kind, name)["status"]["conditions"]
    }
