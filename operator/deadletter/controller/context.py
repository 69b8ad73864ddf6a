"""The state that all parts of the operator share, and what a change of an object puts into the work queue."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deadletter.controller.state.broker_pool import BrokerPool
from deadletter.controller.state.dependents import CHILD_INDEXES, QUEUE_INDEXES, REPLAY_INDEXES, dependents
from deadletter.controller.state.informer import Informers, InformerSpec, is_same_object
from deadletter.controller.state.observed_queues import ObservedQueues
from deadletter.controller.state.secret_cache import SecretCache
from deadletter.controller.state.workqueue import WorkQueue
from deadletter.kube import (
    CONFIG_MAPS,
    CONNECTIONS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    POD_MONITORS,
    POLICIES,
    QUEUES,
    REPLAYS,
    SERVICE_ACCOUNTS,
    Body,
    KubeClient,
    Resource,
)
from deadletter.plan.common_manifests import WorkerImage
from deadletter.plan.worker_manifests import WorkerSettings
from deadletter.settings import Settings

FINALIZER = "deadletter.dev/boxes"
MANAGED_SELECTOR = "app.kubernetes.io/managed-by=dlq-operator"
KINDS = (CONNECTIONS, POLICIES, QUEUES, REPLAYS)
RESOURCE_BY_KIND = {resource.kind: resource for resource in KINDS}


class ObjectKey(NamedTuple):
    """The kind, namespace and name of an object that is reconciled."""

    resource: Resource
    namespace: str
    name: str


def object_key(resource: Resource, body: Body) -> ObjectKey:
    """Return the key of an object."""
    return ObjectKey(resource, body["metadata"]["namespace"], body["metadata"]["name"])


@dataclass(slots=True)
class Liveness:
    """When each loop last made progress, in monotonic seconds; the probes judge by it."""

    reconciled_at: float = field(default_factory=time.monotonic)
    swept_at: float = field(default_factory=time.monotonic)
    resynced_at: float = field(default_factory=time.monotonic)


class OperatorContext:
    """The shared state of one running operator."""

    def __init__(self, settings: Settings, kube: KubeClient) -> None:
        self.settings = settings
        self.kube = kube
        self.secrets = SecretCache(
            kube, settings.secrets_seconds, settings.secrets_require_label, settings.secrets_grant
        )
        self.pool = BrokerPool(self.secrets, settings.allow_addresses)
        self.workqueue: WorkQueue[ObjectKey] = WorkQueue()
        self.liveness = Liveness()
        self.informers = Informers(informer_specs(settings), settings.namespaces, self.on_change)
        self.observed = ObservedQueues()
        self.status_written_at: dict[ObjectKey, float] = {}
        # plural, namespace and name of a child -> the manifest as sent, and the same fields as the server stored them
        self.applied_manifests: dict[tuple[str, str, str], tuple[str, Any]] = {}
        self.terminating_namespaces: set[str] = set()
        self.deleted_replays: list[Body] = []  # whose traces in a ledger are still to be removed

    @property
    def workers(self) -> WorkerSettings:
        """The settings of the workers' pods."""
        settings = self.settings
        image = WorkerImage(settings.image, settings.image_pull_policy, settings.image_pull_secrets)
        return WorkerSettings(
            image, settings.allow_addresses, settings.worker_network_policy, settings.worker_pod_monitor
        )

    def on_change(self, resource: Resource, old: Body | None, new: Body | None) -> None:
        """Put a changed object and its dependents into the work queue; for a child, its owner."""
        body = new or old or {}
        meta = body["metadata"]
        if resource not in KINDS:
            if new is None:
                self.applied_manifests.pop((resource.plural, meta["namespace"], meta["name"]), None)
            self._enqueue_owner(body)
            return
        if resource is QUEUES and old is not None and (new is None or not is_same_object(old, new)):
            self.observed.forget(meta["namespace"], meta["name"])  # a successor of the same name has other letters
        is_spec_changed = spec_identity(old) != spec_identity(new)
        if is_spec_changed:
            self.workqueue.add(object_key(resource, body))
        # When the informers have synced, every object is added once; until then dependents need not be.
        if (is_spec_changed or resource is REPLAYS) and self.informers.have_synced:
            for namespace, name, kind in dependents(self.informers, resource, body):
                self.workqueue.add(ObjectKey(kind, namespace, name))
        if new is None and resource is REPLAYS:
            self.deleted_replays.append(body)

    def _enqueue_owner(self, body: Body) -> None:
        for owner in body["metadata"].get("ownerReferences", ()):
            if owner["kind"] in RESOURCE_BY_KIND:
                resource = RESOURCE_BY_KIND[owner["kind"]]
                self.workqueue.add(ObjectKey(resource, body["metadata"]["namespace"], owner["name"]))


def spec_identity(body: Body | None) -> Any:
    """Return what changes when a user changes an object, and not when the operator writes its status."""
    if body is None:
        return None
    meta = body["metadata"]
    keys = ("uid", "generation", "annotations", "deletionTimestamp", "finalizers")
    return [meta.get(key) for key in keys]


def informer_specs(settings: Settings) -> list[InformerSpec]:
    """Return the informers to run: all objects of our kinds, and the children that carry our label."""
    children = [CONFIG_MAPS, SERVICE_ACCOUNTS, DEPLOYMENTS, JOBS]
    children += [NETWORK_POLICIES] if settings.worker_network_policy else []
    children += [POD_MONITORS] if settings.worker_pod_monitor else []
    indexes = {QUEUES: QUEUE_INDEXES, REPLAYS: REPLAY_INDEXES}
    ours = [InformerSpec(kind, "", indexes.get(kind, {})) for kind in KINDS]
    return ours + [InformerSpec(child, MANAGED_SELECTOR, CHILD_INDEXES) for child in children]
