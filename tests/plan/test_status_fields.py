"""The operator writes every field that the schema of a status declares."""

from dataclasses import replace
from typing import Any

import pytest

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.custom_resource import CustomResource
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.brokers.types import ServerInfo
from deadletter.controller.reconcile.connection import _server_status
from deadletter.controller.reconcile.status import ready_status
from deadletter.core.box_types import FailureGroup
from deadletter.core.heartbeats import WorkerStatus
from deadletter.plan.facts import ParkedLetterLoss, QueueFacts, ReplayFacts
from deadletter.plan.queue_status import queue_status
from deadletter.plan.replay_status import replay_status
from tests.plan.builders import NOW, box_stats, connection, delivered_queue, partition_progress, replay
from tools.crds import build_crd
from tools.reference_docs import walk_fields

GROUP = FailureGroup("ab12cd34", "Timeout", "Network", 3, NOW - 1000, NOW)
DEPLOYMENT = {"status": {"replicas": 2, "readyReplicas": 1, "availableReplicas": 1}}


def _queue() -> dict[str, Any]:
    queue = delivered_queue(capacity={"maxLetters": 10})
    couriers = (WorkerStatus("pod-0"),)
    seen = box_stats(3, NOW - 1000, groups=(GROUP,), upper_bound=True, caught_up=True, couriers=couriers)
    owned = (OwnedBox(name="orders.billing.dlq", id="id-1"),)
    facts = QueueFacts(
        connection(), stats=seen, retention_ms=86_400_000, owned_boxes=owned, deployment=DEPLOYMENT, now=NOW
    )
    facts = replace(facts, loss=ParkedLetterLoss(3, NOW))
    return queue_status(queue, facts, None)


def _replay() -> dict[str, Any]:
    queue = DeadLetterQueue.from_body(
        {"metadata": {"name": "orders"}, "spec": delivered_queue().spec, "status": _queue()}
    )
    running = partition_progress(
        matched=3, scanned=5, next=5, updated_at=NOW + 5000, groups={"ab12cd34": 3}, samples=("0-1",)
    )
    running = running.evolve(targets={"orders": 3}, bytes=99)
    facts = ReplayFacts(queue, connection(), progress=(running,), job={}, now=NOW)
    finished = ReplayFacts(
        queue, connection(), progress=(partition_progress(phase="Finished", matched=3),), job={}, now=NOW
    )
    preview = replay_status(replay(mode="DryRun"), finished, None)
    return preview | replay_status(replay(), facts, None)


def _connection() -> dict[str, Any]:
    server = _server_status(ServerInfo("Kafka", "4.1", 3, transactions=True, id="c1"))
    return ready_status(connection(), None, 1) | {"server": server}


def _policy() -> dict[str, Any]:
    policy = RetryPolicy.from_body({"metadata": {"name": "standard"}})
    return ready_status(policy, None, 1)


def _paths(node: Any, path: str = "status") -> set[str]:
    if isinstance(node, dict):
        inner = [_paths(value, f"{path}.{name}") | {f"{path}.{name}"} for name, value in node.items()]
    else:
        inner = [_paths(value, f"{path}[]") for value in node] if isinstance(node, list | tuple) else []
    return set().union(*inner)


@pytest.mark.parametrize(
    ("kind", "written_status"),
    [(BrokerConnection, _connection), (RetryPolicy, _policy), (DeadLetterQueue, _queue), (Replay, _replay)],
)
def test_every_field_of_a_status_is_written(kind: type[CustomResource], written_status: Any) -> None:
    status = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    declared = {path for path, _, _ in walk_fields(status, "status")}
    assert declared - _paths(written_status()) == set()
    kind.model_fields["status"].annotation.model_validate(written_status())  # type: ignore[union-attr]


def test_a_group_of_a_replay_keeps_its_error_type_when_the_queue_has_no_such_letters() -> None:
    groups = _replay()["groups"]
    assert groups == [{"fingerprint": "ab12cd34", "letters": 3, "errorType": "Timeout", "category": "Network"}]
    subject = replay(status={"groups": groups})
    facts = ReplayFacts(
        delivered_queue(), connection(), progress=(partition_progress(groups={"ab12cd34": 3, "ffff0000": 1}),), now=NOW
    )
    assert [one["errorType"] for one in replay_status(subject, facts, None)["groups"]] == ["Timeout", ""]
