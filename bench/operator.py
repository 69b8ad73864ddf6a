"""Measure the operator on a real API server and Kafka: restart, changes, creations, memory, and its cost when idle."""

import argparse
import asyncio
import os
import re
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench import lines
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core.box_types import BoxSpec
from deadletter.kube import CONNECTIONS, QUEUES, KubeClient, connect
from deadletter.plan.desired_boxes import plan_boxes
from tests.bed import beds
from tests.bed.control import ApiServer
from tests.controller.operator_process import OperatorProcess, create_kubeconfig

TIMEOUT_S = 1200.0
SETTLE_S = 30.0  # until the last status of a burst is written
SETTINGS = {
    "DLQ_SWEEP_SECONDS": "10",
    "DLQ_STATUS_SECONDS": "30",
    "DLQ_RETRY_SECONDS": "15",
    "DLQ_SECRETS_SECONDS": "60",
    "DLQ_REJUDGE_SECONDS": "300",
    "DLQ_RELIST_SECONDS": "60",
    "DLQ_LOG_LEVEL": "info",
}
REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
WRITE = re.compile(r'verb="(PATCH|POST|PUT|DELETE|APPLY)"')
OTHERS = re.compile(r'resource="(leases|serviceaccounts)"')  # written by the API server, and by this program


def queue(dead: str) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "partitions": 1, "replicationFactor": 1}}


def body(namespace: str, name: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


async def all_of(works: Iterable[Awaitable[Any]], at_once: int = 32) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one(work: Awaitable[Any]) -> None:
        async with gate:
            await work

    await asyncio.gather(*(one(work) for work in works))


def is_ready(found: dict[str, Any]) -> bool:
    status = found.get("status") or {}
    seen = status.get("observedGeneration") == found["metadata"]["generation"]
    return seen and any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))


async def until_ready(cluster: KubeClient, namespace: str, count: int) -> float:
    """Return the seconds until all queues are Ready for their newest generation."""
    began = time.monotonic()
    while time.monotonic() - began < TIMEOUT_S:
        found, _ = await cluster.list(QUEUES, namespace)
        if sum(map(is_ready, found)) >= count:
            return time.monotonic() - began
        await asyncio.sleep(max(0.5, count / 1000))  # listing all of them is work for the API server
    raise TimeoutError(f"{count} queues were not Ready in {TIMEOUT_S:.0f} s")


def count_ready(operator: OperatorProcess) -> int:
    """Return how many queues this operator process reports as Ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}/metrics", timeout=30) as answer:
            return len(re.findall(r"^dlq_queue_ready\{.*\} 1\.0$", answer.read().decode(), re.MULTILINE))
    except OSError:
        return 0


async def restart(operator: OperatorProcess, count: int) -> float:
    """Return the seconds from the start of the process until it reports every queue as Ready."""
    operator.start()
    began = time.monotonic()
    while await asyncio.to_thread(count_ready, operator) < count:
        if time.monotonic() - began > TIMEOUT_S:
            raise TimeoutError("the restart took too long")
        await asyncio.sleep(0.5)
    return time.monotonic() - began


def memory(operator: OperatorProcess) -> float:
    """Return the peak resident memory in MiB."""
    text = Path(f"/proc/{operator.process.pid if operator.process else os.getpid()}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", text)[0]) / 1024


async def creations(cluster: KubeClient, namespace: str, count: int, tag: str) -> float:
    """Return the 95th percentile of the time from create to Ready, all created at once."""
    names = [f"new-{tag}-{number}" for number in range(count)]
    made: dict[str, float] = {}
    ready: dict[str, float] = {}

    async def create(name: str) -> None:
        await cluster.create(QUEUES, namespace, body(namespace, name, "DeadLetterQueue", queue(f"{namespace}.{name}")))
        made[name] = time.monotonic()

    creating = asyncio.create_task(all_of(map(create, names)))
    while len(ready) < count:
        found, _ = await cluster.list(QUEUES, namespace)
        for one in found:
            name = one["metadata"]["name"]
            if name in made and name not in ready and is_ready(one):
                ready[name] = time.monotonic() - made[name]
        await asyncio.sleep(0.2)
    await creating
    return quantiles(ready.values(), n=20)[-1]


def requests(server: ApiServer) -> tuple[float, float]:
    """Return all requests that the API server has counted, and the writes among them."""
    found = REQUESTS.findall(server.kubectl("get", "--raw", "/metrics"))
    written = [float(count) for labels, count in found if WRITE.search(labels) and not OTHERS.search(labels)]
    return sum(float(count) for _, count in found), sum(written)


async def make_boxes(kafka: str, wanted: Sequence[BoxSpec]) -> None:
    """Create topics as the operator would."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka, request_timeout_ms=120_000)
    await admin.start()
    try:
        for at in range(0, len(wanted), 100):
            await admin.create_topics([as_topic(box) for box in wanted[at : at + 100]])
    finally:
        await admin.close()


def as_topic(box: BoxSpec) -> NewTopic:
    return NewTopic(box.name, 1, 1, topic_configs={"retention.ms": str(box.retention_ms), **box.config})


async def own_boxes(cluster: KubeClient, namespace: str, name: str) -> None:
    """Record in the status that the boxes belong to the queue."""
    dead = f"{namespace}.{name}"
    records = [{"name": dead}, {"name": f"{dead}.ledger"}]
    await cluster.patch(QUEUES, namespace, name, {"status": {"ownedBoxes": records}}, "status")


async def scene(
    server: ApiServer, kafka: str, count: int, folder: Path, cluster: KubeClient
) -> tuple[str, OperatorProcess]:
    """Create a namespace with `count` plain queues whose boxes exist; return it with an operator not yet started."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    server.kubectl("create", "namespace", namespace)
    spec = {"kafka": {"bootstrapServers": [kafka], "defaults": {"partitions": 1, "replicationFactor": 1}}}
    broker = body(namespace, "broker", "BrokerConnection", spec)
    await cluster.create(CONNECTIONS, namespace, broker)
    made = [body(namespace, f"q-{at}", "DeadLetterQueue", queue(f"{namespace}.q-{at}")) for at in range(count)]
    lines.progress(f"{count} queues and their boxes")
    known = BrokerConnection.from_body(broker).spec
    await make_boxes(kafka, [plan_boxes(DeadLetterQueue.from_body(one), known)[0] for one in made])
    await all_of(cluster.create(QUEUES, namespace, one) for one in made)
    # As if the operator had created the boxes: otherwise it would not use them.
    await all_of(own_boxes(cluster, namespace, f"q-{at}") for at in range(count))
    config = create_kubeconfig(server, namespace, folder)
    return namespace, OperatorProcess(config, namespace, folder / f"{namespace}.log", **SETTINGS)


async def starts(operator: OperatorProcess, cluster: KubeClient, namespace: str, count: int, limit: float) -> None:
    """Measure the first start, which writes every status, and a restart, which writes none."""
    operator.start()
    lines.bound(f"operator-start-{count}", "s", await until_ready(cluster, namespace, count), limit)
    await asyncio.sleep(SETTLE_S)
    operator.stop()
    lines.bound(f"operator-restart-{count}", "s", await restart(operator, count), limit)
    await asyncio.sleep(SETTLE_S)


async def measure_idle(server: ApiServer, count: int, seconds: float) -> None:
    """Measure what the operator costs the API server when nothing happens."""
    lines.progress(f"idle for {seconds:.0f} s")
    before, began = requests(server), time.monotonic()
    await asyncio.sleep(seconds)
    after, spent = requests(server), time.monotonic() - began
    writes = (after[1] - before[1]) * 3600 / spent / count
    lines.bound(f"operator-idle-writes-{count}", "writes/queue/h", max(writes, 1e-9), 0.01)
    lines.bound(f"operator-idle-requests-{count}", "requests/s", (after[0] - before[0]) / spent, 20)


async def changes(cluster: KubeClient, namespace: str, count: int) -> float:
    """Return the seconds from the first of many changed specs until all are Ready again."""
    began = time.monotonic()
    change = {"spec": {"alerts": {"depth": 7}}}
    await all_of(cluster.patch(QUEUES, namespace, f"q-{at}", change) for at in range(count))
    await until_ready(cluster, namespace, count)
    return time.monotonic() - began


async def measure(server: ApiServer, kafka: str, folder: Path, options: argparse.Namespace) -> None:
    async with connect(10_000, 10_000) as cluster:
        if count := options.queues:
            namespace, operator = await scene(server, kafka, count, folder, cluster)
            try:
                await starts(operator, cluster, namespace, count, 60)
                await measure_idle(server, count, options.idle)
                lines.bound(f"operator-changes-{count}", "s", await changes(cluster, namespace, count), 60)
                late = await creations(cluster, namespace, options.created, uuid.uuid4().hex[:6])
                lines.bound(f"operator-create-to-ready-p95-{options.created}", "s", late, 10)
                lines.bound(f"operator-memory-{count}", "MiB", memory(operator), 200)
            finally:
                operator.stop()
        if count := options.many:
            namespace, operator = await scene(server, kafka, count, folder, cluster)
            try:
                await starts(operator, cluster, namespace, count, 60 * count / 1000)
                lines.bound(f"operator-memory-{count}", "MiB", memory(operator), 350)
            finally:
                operator.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000, help="0 skips this part")
    parser.add_argument("--created", type=int, default=100)
    parser.add_argument("--many", type=int, default=3000, help="0 skips this part")
    parser.add_argument("--idle", type=float, default=300.0, help="seconds")
    options = parser.parse_args()
    bed = beds.create()
    try:
        server, kafka = bed.api_server(), bed.kafka()
        os.environ["KUBECONFIG"] = str(server.kubeconfig)
        server.install_crds()
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(server, kafka, Path(folder), options))
    finally:
        bed.down()


if __name__ == "__main__":
    main()
