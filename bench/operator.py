"""The operator on a real API server and a real Kafka: restart, changes, creations, memory, and its cost when idle."""

import argparse
import asyncio
import os
import re
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Iterable
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench import lines
from deadletter.cluster import CONNECTIONS, QUEUES, Cluster, connect
from tests.bed import beds, places
from tests.bed.control import ApiServer
from tests.handlers.operators import Operator, rights

DEADLINE = 1200.0
SETTINGS = {
    "DLQ_SWEEP_SECONDS": "10",
    "DLQ_STATUS_SECONDS": "30",
    "DLQ_RETRY_SECONDS": "15",
    "DLQ_SECRETS_SECONDS": "60",
    "DLQ_REJUDGE_SECONDS": "300",
    "DLQ_RELIST_SECONDS": "60",
    "DLQ_LOG_LEVEL": "info",
}
WRITES = re.compile(
    r'^apiserver_request_total\{.*group="(deadletter.dev|apps|batch|)".*verb="(PATCH|POST|PUT|DELETE|APPLY)"'
)
OURS = re.compile(r'resource="(deadletterqueues|brokerconnections|retrypolicies|replays|deployments|events)"')


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


async def until_ready(cluster: Cluster, namespace: str, count: int) -> float:
    """Seconds until all queues are Ready for their newest generation."""
    began = time.monotonic()
    while time.monotonic() - began < DEADLINE:
        found, _ = await cluster.list(QUEUES, namespace)
        if sum(map(is_ready, found)) >= count:
            return time.monotonic() - began
        await asyncio.sleep(0.5)
    raise TimeoutError(f"{count} queues were not Ready in {DEADLINE:.0f} s")


def judged(operator: Operator) -> int:
    """How many queues this very process has found Ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}/metrics", timeout=30) as answer:
            return len(re.findall(r"^dlq_queue_ready\{.*\} 1\.0$", answer.read().decode(), re.MULTILINE))
    except OSError:
        return 0


async def restart(operator: Operator, count: int) -> float:
    """Seconds from the start of the process until it has found every queue Ready."""
    operator.start()
    began = time.monotonic()
    while await asyncio.to_thread(judged, operator) < count:
        if time.monotonic() - began > DEADLINE:
            raise TimeoutError("the restart took too long")
        await asyncio.sleep(0.5)
    return time.monotonic() - began


def memory(operator: Operator) -> float:
    """Resident memory in MiB."""
    text = Path(f"/proc/{operator.process.pid if operator.process else os.getpid()}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


async def creations(cluster: Cluster, namespace: str, count: int, tag: str) -> float:
    """The 95th percentile of create-to-Ready, all created at once."""
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


def writes(server: ApiServer) -> float:
    """Writes to our kinds and their children that the API server has counted."""
    found = server.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(float(one.rsplit(" ", 1)[1]) for one in found if WRITES.search(one) and OURS.search(one))


async def scene(server: ApiServer, kafka: str, count: int, folder: Path, cluster: Cluster) -> tuple[str, Operator]:
    """A namespace with `count` plain queues whose boxes exist, and an operator that is not started."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    server.kubectl("create", "namespace", namespace)
    spec = {"kafka": {"bootstrapServers": [kafka], "defaults": {"partitions": 1, "replicationFactor": 1}}}
    await cluster.create(CONNECTIONS, namespace, body(namespace, "broker", "BrokerConnection", spec))
    made = [body(namespace, f"q-{at}", "DeadLetterQueue", queue(f"{namespace}.q-{at}")) for at in range(count)]
    await all_of(cluster.create(QUEUES, namespace, one) for one in made)
    config = rights(server, namespace, folder)
    operator = Operator(config, namespace, folder / f"{namespace}.log", **SETTINGS)
    lines.progress(f"{count} queues: making their boxes")
    operator.start()
    await until_ready(cluster, namespace, count)
    operator.stop()
    return namespace, operator


async def measure(server: ApiServer, kafka: str, folder: Path, asked: argparse.Namespace) -> None:
    async with connect(10_000, 10_000) as cluster:
        namespace, operator = await scene(server, kafka, asked.queues, folder, cluster)
        try:
            lines.bound(f"operator-restart-{asked.queues}", "s", await restart(operator, asked.queues), 60)
            await asyncio.sleep(min(30.0, asked.idle))
            before, began = writes(server), time.monotonic()
            lines.progress(f"idle for {asked.idle:.0f} s")
            await asyncio.sleep(asked.idle)
            spent = (writes(server) - before) * 3600 / (time.monotonic() - began) / asked.queues
            lines.bound(f"operator-idle-writes-{asked.queues}", "writes/queue/h", max(spent, 1e-9), 0.01)
            lines.bound(f"operator-memory-{asked.queues}", "MiB", memory(operator), 200)
            change = {"spec": {"alerts": {"depth": 7}}}
            began = time.monotonic()
            await all_of(cluster.patch(QUEUES, namespace, f"q-{at}", change) for at in range(asked.queues))
            await until_ready(cluster, namespace, asked.queues)
            lines.bound(f"operator-changes-{asked.queues}", "s", time.monotonic() - began, 60)
            late = await creations(cluster, namespace, asked.created, uuid.uuid4().hex[:6])
            lines.bound(f"operator-create-to-ready-p95-{asked.created}", "s", late, 10)
        finally:
            operator.stop()
        if asked.many:
            namespace, operator = await scene(server, kafka, asked.many, folder, cluster)
            try:
                linear = 60 * asked.many / asked.queues
                lines.bound(f"operator-restart-{asked.many}", "s", await restart(operator, asked.many), linear)
                await asyncio.sleep(30)
                lines.bound(f"operator-memory-{asked.many}", "MiB", memory(operator), 350)
            finally:
                operator.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--created", type=int, default=100)
    parser.add_argument("--many", type=int, default=3000, help="0: leave it out")
    parser.add_argument("--idle", type=float, default=300.0, help="seconds")
    asked = parser.parse_args()
    bed = beds.create()
    try:
        server, kafka = bed.api_server(), bed.kafka()
        os.environ["KUBECONFIG"] = str(server.kubeconfig)
        server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(places.REPOSITORY / "crds"))
        server.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", str(places.REPOSITORY / "crds"))
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(server, kafka, Path(folder), asked))
    finally:
        bed.down()


if __name__ == "__main__":
    main()
