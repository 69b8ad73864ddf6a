"""Build the manifests that all workers share: pod, ConfigMap, ServiceAccount and NetworkPolicy.

Pods pass the Pod Security Standard `restricted`, mount no API token, and read their configuration from one ConfigMap
and from Secrets mounted as files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from deadletter.api.custom_resource import API_VERSION
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.worker_config import LiveConfig, WorkerConfig
from deadletter.core import names

Manifest = dict[str, Any]
ASSIGNMENT_KEY = "assignment.json"
LIVE_KEY = "live.json"
ASSIGNMENT_HASH_ANNOTATION = "deadletter.dev/assignment"
HEALTH_PORT = 8081
USER_ID = 10001


@dataclass(frozen=True, slots=True)
class WorkerImage:
    """The container image that workers run."""

    name: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


def child_manifest(
    kind: str, api_version: str, owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str]
) -> Manifest:
    """Return a manifest with metadata only: name, labels and the owner reference."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": type(owner).kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }


def assignment_config_map(
    owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str], assignment: str, live: LiveConfig
) -> Manifest:
    """Return the ConfigMap that a worker reads: its assignment, and the configuration that may change while it runs."""
    manifest = child_manifest("ConfigMap", "v1", owner, name, labels)
    return manifest | {"data": {ASSIGNMENT_KEY: assignment, LIVE_KEY: to_json(live)}}


def network_policy(
    owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str], selected: dict[str, str]
) -> Manifest:
    """Return the NetworkPolicy that admits only probes and metrics requests to the selected pods."""
    spec = {
        "podSelector": {"matchLabels": selected},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": "health", "protocol": "TCP"}]}],
    }
    return child_manifest("NetworkPolicy", "networking.k8s.io/v1", owner, name, labels) | {"spec": spec}


def to_json(model: WorkerConfig) -> str:
    """Render a model as JSON; equal models give equal text."""
    return model.model_dump_json(exclude_none=True)


def assignment_hash(assignment: WorkerConfig) -> str:
    """Return a hash of all fields that running pods must be replaced for."""
    rolling = assignment.model_dump_json(exclude_none=True, exclude=set(assignment.not_rolling))
    return sha256(rolling.encode()).hexdigest()[:16]


def service_account(owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str]) -> Manifest:
    """Return a ServiceAccount whose pods get no API token."""
    return child_manifest("ServiceAccount", "v1", owner, name, labels) | {"automountServiceAccountToken": False}


def pod_spec(
    role: str, config: str, account: str, secrets: Sequence[str], image: WorkerImage, resources: Any = None
) -> Manifest:
    """Return the pod spec of a worker.

    `config` and `account` are the names of its ConfigMap and its ServiceAccount; `secrets` are mounted as files.
    """
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 45,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": name} for name in image.pull_secrets],
        "containers": [_container(role, secrets, image, resources)],
        "volumes": [
            {"name": "assignment", "configMap": {"name": config, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            *(
                {
                    "name": secret_volume_name(name),
                    "secret": {"secretName": name, "optional": True, "defaultMode": 0o440},
                }
                for name in secrets
            ),
        ],
    }


def secret_volume_name(secret: str) -> str:
    """Return a volume name for a Secret: no dots, at most 63 characters."""
    return names.child_name("secret", secret)


def _container(role: str, secrets: Sequence[str], image: WorkerImage, resources: Any) -> Manifest:
    return {
        "name": role,
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "args": [role],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "DLQ_HEALTH_PORT", "value": str(HEALTH_PORT)},
        ],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
        "livenessProbe": _probe("/healthz", 10, 6),
        "readinessProbe": _probe("/readyz", 3, 3),
        "resources": resources or {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "assignment", "mountPath": "/etc/deadletter", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of this pod, in memory
            *(
                {"name": secret_volume_name(name), "mountPath": f"/secrets/{name}", "readOnly": True}
                for name in secrets
            ),
        ],
    }


def _probe(path: str, period_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "health"},
        "initialDelaySeconds": 1,
        "periodSeconds": period_seconds,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
