"""What all our pods share: restricted, read-only, without a token, told by one ConfigMap and Secret files."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from deadletter.api.assignments import Live, Told
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.kinds import API_VERSION
from deadletter.api.replays import Replay
from deadletter.core import names

Manifest = dict[str, Any]
ASSIGNMENT = "assignment.json"
LIVE = "live.json"
HASH = "deadletter.dev/assignment"
PORT = 8081
USER = 10001


@dataclass(frozen=True, slots=True)
class Image:
    """What workers run, as the operator's settings tell."""

    name: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


def owned(kind: str, api_version: str, owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str]) -> Manifest:
    """The head of a child: named, labelled and owned."""
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


def told(owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str], assignment: str, live: Live) -> Manifest:
    """The ConfigMap that a worker reads."""
    head = owned("ConfigMap", "v1", owner, name, labels)
    return head | {"data": {ASSIGNMENT: assignment, LIVE: written(live)}}


def network_policy(
    owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str], selected: dict[str, str]
) -> Manifest:
    """Nothing but probes and metrics comes in."""
    spec = {
        "podSelector": {"matchLabels": selected},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": "health", "protocol": "TCP"}]}],
    }
    return owned("NetworkPolicy", "networking.k8s.io/v1", owner, name, labels) | {"spec": spec}


def written(model: Told) -> str:
    """One JSON text, the same for the same model."""
    return model.model_dump_json(exclude_none=True)


def digest(assignment: Told) -> str:
    """Return a digest that rolls the pods when it changes: of all fields but those that only a new pod needs."""
    rolling = assignment.model_dump_json(exclude_none=True, exclude=set(assignment.not_rolling))
    return sha256(rolling.encode()).hexdigest()[:16]


def account(owner: DeadLetterQueue | Replay, name: str, labels: dict[str, str]) -> Manifest:
    """A ServiceAccount whose pods get no token."""
    return owned("ServiceAccount", "v1", owner, name, labels) | {"automountServiceAccountToken": False}


def pod(
    role: str, config: str, service_account: str, secrets: Sequence[str], image: Image, resources: Any = None
) -> Manifest:
    """The spec of a worker's pod."""
    return {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 45,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": name} for name in image.pull_secrets],
        "containers": [_container(role, secrets, image, resources)],
        "volumes": [
            {"name": "assignment", "configMap": {"name": config, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            *(
                {"name": volume(name), "secret": {"secretName": name, "optional": True, "defaultMode": 0o440}}
                for name in secrets
            ),
        ],
    }


def volume(secret: str) -> str:
    """The name of a Secret's volume: no dots, at most 63 characters."""
    return names.child("secret", secret)


def _container(role: str, secrets: Sequence[str], image: Image, resources: Any) -> Manifest:
    return {
        "name": role,
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "args": [role],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "DLQ_HEALTH_PORT", "value": str(PORT)},
        ],
        "ports": [{"name": "health", "containerPort": PORT, "protocol": "TCP"}],
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
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own, in memory
            *({"name": volume(name), "mountPath": f"/secrets/{name}", "readOnly": True} for name in secrets),
        ],
    }


def _probe(path: str, every: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "health"},
        "initialDelaySeconds": 1,
        "periodSeconds": every,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
