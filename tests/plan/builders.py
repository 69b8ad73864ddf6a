"""Short builders of queues, Replays and facts for the tests of plan and of its users."""

from typing import Any

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.core.box_types import BoxStats
from deadletter.core.replay_progress import PartitionProgress, Span
from deadletter.plan.facts import ReplayFacts

NOW = 1_794_787_200_000


def metadata(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": 1} | more


def connection(redis: bool = False, **kafka: Any) -> BrokerConnection:
    spec = {"redis": {"url": "redis://r:6379/0"}} if redis else {"kafka": {"bootstrapServers": ["k:9092"]} | kafka}
    return BrokerConnection.from_body({"metadata": metadata("broker"), "spec": spec})


def plain_queue(name: str = "orders", **more: Any) -> DeadLetterQueue:
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": f"{name}.dead"}} | more
    return DeadLetterQueue.from_body({"metadata": metadata(name), "spec": spec})


def delivered_queue(name: str = "orders", status: dict[str, Any] | None = None, **more: Any) -> DeadLetterQueue:
    http = {"serviceRef": {"name": "billing", "port": 8080, "path": "/orders"}}
    spec = {"source": {"name": "orders", "group": "billing"}, "delivery": {"http": http, "replicas": 2}}
    whole = {"brokerRef": {"name": "broker"}} | spec | more
    return DeadLetterQueue.from_body({"metadata": metadata(name), "spec": whole, "status": status or {}})


def replay(name: str = "again", status: dict[str, Any] | None = None, **more: Any) -> Replay:
    spec = {"queueRef": {"name": "orders"}} | more
    return Replay.from_body({"metadata": metadata(name), "spec": spec, "status": status or {}})


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": "attempts > 3", "queueRef": {"name": name}} for name in names]


def box_stats(depth: int = 0, oldest: int | None = None, **more: Any) -> BoxStats:
    return BoxStats(depth, oldest, **more)


def partition_progress(partition: int = 0, end: int = 10, **more: Any) -> PartitionProgress:
    return PartitionProgress(Span(partition, 0, end), NOW, **({"next": end} | more))


def ready_queue(**more: Any) -> DeadLetterQueue:
    queue = plain_queue(**more)
    ready = condition_field("BoxesReady", "True", "BoxesFound")
    return queue.model_copy(update={"status": type(queue.status).model_validate({"conditions": [ready]})})


def condition_field(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-11-16T00:00:00Z"}


def replay_facts(**more: Any) -> ReplayFacts:
    return ReplayFacts(**({"queue": ready_queue(), "connection": connection(), "now": NOW} | more))


def skipping(partition: int = 0, replayed: int = 0, **skipped: int) -> PartitionProgress:
    """A finished partition that skipped letters for these reasons."""
    matched = sum(count for reason, count in skipped.items() if reason != "SelectorError") + replayed
    ended = {"phase": "Finished", "reason": "AllReplayed", "matched": matched, "replayed": replayed}
    return partition_progress(partition, skipped=skipped, **ended)
