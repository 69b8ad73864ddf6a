"""The node's own promises: pods run restricted, find Services by name and reach the brokers."""

import json
import time

import pytest

from tests.bed.node import Cluster
from tests.bed.processes import BedError

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

SECURITY = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def server_of(cluster: Cluster) -> list[dict[str, object]]:
    labels = {"app": "web"}
    container = {
        "name": "web",
        "image": cluster.image,
        "command": ["python", "-m", "http.server", "8080", "-d", "/opt"],
        "securityContext": SECURITY,
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
    }
    pod = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service},
    ]


def said_within_pod(cluster: Cluster, namespace: str, program: str) -> str:
    """What a program prints in the pod; tried until it works, as rules and names reach the node a little later."""
    end = time.monotonic() + 120
    while True:
        try:
            return cluster.kubectl("-n", namespace, "exec", "deploy/web", "--", "python", "-c", program).strip()
        except BedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def test_a_restricted_pod_finds_services_and_brokers(cluster: Cluster, cluster_namespace: str, redis: str) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": server_of(cluster)}
    cluster.kubectl("-n", cluster_namespace, "apply", "-f", "-", stdin=json.dumps(listed))
    cluster.kubectl("-n", cluster_namespace, "rollout", "status", "deploy/web", "--timeout=180s")

    asks = f"import urllib.request as r; print(r.urlopen('http://web.{cluster_namespace}.svc', timeout=10).status)"
    assert said_within_pod(cluster, cluster_namespace, asks) == "200"

    pings = f"import redis; print(redis.Redis.from_url({redis!r}).ping())"
    assert said_within_pod(cluster, cluster_namespace, pings) == "True"


def test_helm_talks_to_the_cluster(cluster: Cluster, cluster_namespace: str) -> None:
    assert json.loads(cluster.helm("list", "-n", cluster_namespace, "-o", "json")) == []
