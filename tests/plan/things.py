"""Models made from few words, for tables."""

from typing import Any

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.core.box_stats import BoxStats
from deadletter.core.replay_progress import PartitionProgress, Span

NOW = 1_794_787_200_000


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": 1} | more


def connection(redis: bool = False, **kafka: Any) -> BrokerConnection:
    spec = {"redis": {"url": "redis://r:6379/0"}} if redis else {"kafka": {"bootstrapServers": ["k:9092"]} | kafka}
    return BrokerConnection.from_body({"metadata": meta("broker"), "spec": spec})


def plain(name: str = "orders", **more: Any) -> DeadLetterQueue:
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": f"{name}.dead"}} | more
    return DeadLetterQueue.from_body({"metadata": meta(name), "spec": spec})


def delivered(name: str = "orders", status: dict[str, Any] | None = None, **more: Any) -> DeadLetterQueue:
    http = {"serviceRef": {"name": "billing", "port": 8080, "path": "/orders"}}
    spec = {"source": {"name": "orders", "group": "billing"}, "delivery": {"http": http, "replicas": 2}}
    whole = {"brokerRef": {"name": "broker"}} | spec | more
    return DeadLetterQueue.from_body({"metadata": meta(name), "spec": whole, "status": status or {}})


def replay(name: str = "again", status: dict[str, Any] | None = None, **more: Any) -> Replay:
    spec = {"queueRef": {"name": "orders"}} | more
    return Replay.from_body({"metadata": meta(name), "spec": spec, "status": status or {}})


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"match": "attempts > 3", "queueRef": {"name": name}} for name in names]


def reading(depth: int = 0, oldest: int | None = None, **more: Any) -> BoxStats:
    return BoxStats(depth, oldest, **more)


def tally(partition: int = 0, end: int = 10, **more: Any) -> PartitionProgress:
    return PartitionProgress(Span(partition, 0, end), NOW, **({"next": end} | more))
