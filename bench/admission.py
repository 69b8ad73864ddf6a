"""Measure the webhook at 1,000 queues: the time of its answer, and of the whole write through the API server."""

import argparse
import asyncio
import http.client
import json
import os
import ssl
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import yaml

from bench import lines
from bench.operator import SETTINGS, all_of, body, until_ready
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, KubeClient, connect
from tests.api.server import Server
from tests.bed import beds, ports
from tests.bed.control import ApiServer
from tests.controller.operator_process import OperatorProcess, create_kubeconfig, wait_until
from tests.controller.webhook_config import HOST, create_certificate, webhook_configuration

MAX_MS = 50
PLURALS = {"queues": "deadletterqueues", "policies": "retrypolicies", "replays": "replays"}
RULES = [{"name": f"r{at}", "match": f"error.status == {400 + at} && attempts < 9"} for at in range(32)]


def queue(name: str, **more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "retryPolicyRef": {"name": "standard"}, "dead": {"name": name}} | more


def routes(*targets: str) -> list[dict[str, Any]]:
    return [{"match": "attempts > 3", "queueRef": {"name": name}} for name in targets]


async def scene(cluster: KubeClient, namespace: str, redis: str, queues: int) -> None:
    """Create one target that half of the queues route to, and queues that follow one policy."""
    await cluster.create(
        CONNECTIONS, namespace, body(namespace, "broker", "BrokerConnection", {"redis": {"url": redis}})
    )
    await cluster.create(POLICIES, namespace, body(namespace, "standard", "RetryPolicy", {}))
    specs = {"target": queue(f"{namespace}.target")}
    for at in range(queues - 1):
        way = {"routes": routes("target")} if at % 2 else {}
        specs[f"q-{at}"] = queue(f"{namespace}.q-{at}", **way)
    made = [body(namespace, name, "DeadLetterQueue", spec) for name, spec in specs.items()]
    await all_of(cluster.create(QUEUES, namespace, one) for one in made)


Write = tuple[str, str, dict[str, Any], dict[str, Any] | None]


def writes(namespace: str) -> Iterator[Write]:
    """Yield typical writes in turn: path of the webhook, operation, object, and the object before."""

    def made(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return body(namespace, name, kind, spec)

    target = made("DeadLetterQueue", "target", queue(f"{namespace}.target"))
    for at in count(1):
        box = f"{namespace}.new-{at}"
        yield "queues", "CREATE", made("DeadLetterQueue", f"new-{at}", queue(box, routes=routes("target"))), None
        yield "queues", "CREATE", made("DeadLetterQueue", f"bad-{at}", queue(box, routes=routes("q-1"))), None
        yield "queues", "CREATE", made("DeadLetterQueue", f"rival-{at}", queue(f"{namespace}.q-7")), None
        changed = queue(f"{namespace}.target", alerts={"depth": at}, routes=routes("q-2") if at % 2 else [])
        yield "queues", "UPDATE", made("DeadLetterQueue", "target", changed), target
        yield "policies", "CREATE", made("RetryPolicy", f"new-{at}", {"rules": RULES}), None
        replay = {"queueRef": {"name": "q-3"}, "select": {"where": f"attempts < {at} && error.status == 503"}}
        yield "replays", "CREATE", made("Replay", f"new-{at}", replay), None
        yield "policies", "DELETE", made("RetryPolicy", "standard", {}), None


class Webhook:
    """A client that calls the operator's webhook as the API server does."""

    def __init__(self, port: int, certificates: Path) -> None:
        context = ssl.create_default_context(cafile=str(certificates / "tls.crt"))
        self._connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=60)

    def review(self, path: str, operation: str, whole: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Send one review; raise if the response is not for it."""
        uid = uuid.uuid4().hex
        old, new = (whole, None) if operation == "DELETE" else (before, whole)
        kind = {"group": "deadletter.dev", "version": "v1alpha1"}
        request = {
            "uid": uid,
            "kind": kind | {"kind": whole["kind"]},
            "resource": kind | {"resource": PLURALS[path]},
            "operation": operation,
            "name": whole["metadata"]["name"],
            "namespace": whole["metadata"]["namespace"],
            "userInfo": {"username": "bench", "uid": "bench", "groups": []},
            "object": new,
            "oldObject": old,
            "dryRun": True,
            "options": {},
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        self._connection.request("POST", f"/{path}", json.dumps(review), {"Content-Type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())
        if answer["response"]["uid"] != uid:
            raise RuntimeError("the webhook answered another review")


def write_through_api(
    server: Server, path: str, operation: str, whole: dict[str, Any], _: dict[str, Any] | None
) -> None:
    """Send the same write to the API server as a dry run: it calls the webhook and stores nothing."""
    namespace, name = whole["metadata"]["namespace"], whole["metadata"]["name"]
    where = f"/apis/deadletter.dev/v1alpha1/namespaces/{namespace}/{PLURALS[path]}"
    if operation == "CREATE":
        status, _response = server.request("POST", f"{where}?dryRun=All", whole)
    elif operation == "UPDATE":
        kind = "application/merge-patch+json"
        status, _response = server.request("PATCH", f"{where}/{name}?dryRun=All", {"spec": whole["spec"]}, kind)
    else:
        status, _response = server.request("DELETE", f"{where}/{name}?dryRun=All")
    if status not in (200, 201, 422):
        raise RuntimeError(f"the API server answered {status}")


def timed(call: Callable[..., None], namespace: str, reviews: int, pause: float) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds; pauses spread the calls over sweeps and reconciles."""
    took: dict[str, list[float]] = {}
    for write in islice(writes(namespace), reviews):
        began = time.perf_counter()
        call(*write)
        took.setdefault(" ".join(write[:2]), []).append((time.perf_counter() - began) * 1000)
        time.sleep(pause)
    for name, times in took.items():
        lines.progress(f"  {name}: median {median(times):.1f} ms, longest {max(times):.1f} ms")
    cuts = quantiles([one for times in took.values() for one in times], n=100)
    return cuts[49], cuts[98]


def measure(server: ApiServer, namespace: str, port: int, certificates: Path, options: argparse.Namespace) -> None:
    webhook, api = Webhook(port, certificates), Server(server.kubeconfig)
    name = f"dlq-{namespace}"
    for what, call in (("answer", webhook.review), ("write", partial(write_through_api, api))):
        if what == "write":
            whole = webhook_configuration(name, namespace, str(port), certificates / "tls.crt", failurePolicy="Fail")
            server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(whole))
        lines.progress(f"{what}: {options.reviews} reviews")
        timed(call, namespace, 60, 0.01)
        p50, p99 = timed(call, namespace, options.reviews, options.pause)
        lines.bound(f"admission-{what}-p50-{options.queues}", "ms", p50, MAX_MS)
        lines.bound(f"admission-{what}-p99-{options.queues}", "ms", p99, MAX_MS)
    server.kubectl("delete", "validatingwebhookconfiguration", name)


async def prepare(
    server: ApiServer, redis: str, folder: Path, queues: int, port: int, settle: float
) -> tuple[str, OperatorProcess]:
    """Create a namespace with Ready queues and start the operator; return both."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    server.kubectl("create", "namespace", namespace)
    async with connect(10_000, 10_000) as cluster:
        lines.progress(f"{queues} queues")
        await scene(cluster, namespace, redis, queues)
        more = SETTINGS | {"DLQ_WEBHOOK_CERTIFICATES": str(folder), "DLQ_WEBHOOK_PORT": str(port)}
        operator = OperatorProcess(
            create_kubeconfig(server, namespace, folder), namespace, folder / "operator.log", **more
        )
        operator.start()
        await until_ready(cluster, namespace, queues)
    lines.progress(f"{settle:.0f} s until the operator has written the first numbers")
    await asyncio.sleep(settle)
    wait_until("webhook", lambda: ports.answers(HOST, port))
    return namespace, operator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--reviews", type=int, default=1200)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two reviews")
    parser.add_argument("--settle", type=float, default=45.0, help="seconds between Ready and the first review")
    options = parser.parse_args()
    bed = beds.create()
    try:
        server, redis, port = bed.api_server(), bed.redis(), ports.free(HOST)[0]
        os.environ["KUBECONFIG"] = str(server.kubeconfig)
        server.install_crds()
        with tempfile.TemporaryDirectory() as name:
            folder = create_certificate(Path(name))
            namespace, operator = asyncio.run(prepare(server, redis, folder, options.queues, port, options.settle))
            try:
                measure(server, namespace, port, folder, options)
            finally:
                operator.stop()
    finally:
        bed.down()


if __name__ == "__main__":
    main()
