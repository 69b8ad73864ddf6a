"""Everything the handlers share: settings, doors, informers, what waits for a pass and what the sweep has read."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deadletter.api.queue_status import OwnedBox
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import BoxState
from deadletter.controller.state.broker_pool import BrokerPool
from deadletter.controller.state.dependents import CHILD_INDEXES, QUEUE_INDEXES, REPLAY_INDEXES, dependents
from deadletter.controller.state.informer import Informers, InformerSpec, is_same_object
from deadletter.controller.state.secret_cache import SecretCache
from deadletter.controller.state.workqueue import WorkQueue
from deadletter.core.box_spec import BoxSpec
from deadletter.core.box_stats import BoxStats
from deadletter.kube import (
    ACCOUNTS,
    CONFIG_MAPS,
    CONNECTIONS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    POD_MONITORS,
    POLICIES,
    QUEUES,
    REPLAYS,
    Body,
    Cluster,
    Resource,
)
from deadletter.plan.facts import ParkedLetterLoss
from deadletter.plan.pod_template import WorkerImage
from deadletter.plan.worker_manifests import WorkerSettings
from deadletter.settings import Settings

FINALIZER = "deadletter.dev/boxes"
MANAGED_SELECTOR = "app.kubernetes.io/managed-by=dlq-operator"
KINDS = (CONNECTIONS, POLICIES, QUEUES, REPLAYS)
RESOURCE_BY_KIND = {resource.kind: resource for resource in KINDS}


class ObjectKey(NamedTuple):
    """One object of ours by its address."""

    resource: Resource
    namespace: str
    name: str


@dataclass(slots=True)
class BoxSurvey:
    """What the broker said of a queue's boxes, which were asked for, and when."""

    planned: tuple[BoxSpec, ...]
    states: dict[str, BoxState]
    surveyed_at: float
    ledger_lacks: str | None = None  # what the broker refuses to give the ledger; None: not asked yet


@dataclass(slots=True)
class Liveness:
    """When we last looked: for the probes."""

    reconciled_at: float = field(default_factory=time.monotonic)
    swept_at: float = field(default_factory=time.monotonic)
    resynced_at: float = field(default_factory=time.monotonic)


class OperatorContext:
    """One running operator."""

    def __init__(self, settings: Settings, kube: Cluster) -> None:
        self.settings = settings
        self.kube = kube
        self.secrets = SecretCache(
            kube, settings.secrets_seconds, settings.secrets_require_label, settings.secrets_grant
        )
        self.pool = BrokerPool(self.secrets, settings.allow_addresses)
        self.workqueue: WorkQueue[ObjectKey] = WorkQueue()
        self.liveness = Liveness()
        self.informers = Informers(informer_specs(settings), settings.namespaces, self.on_change)
        self.box_stats: dict[tuple[str, str], BoxStats] = {}
        self.box_errors: dict[tuple[str, str], BrokerError] = {}  # what only reading a box shows
        self.surveys: dict[tuple[str, str], BoxSurvey] = {}
        self.owned_boxes: dict[tuple[str, str], tuple[OwnedBox, ...]] = {}
        self.losses: dict[tuple[str, str], ParkedLetterLoss] = {}  # found since we started, with what the status says of before
        self.status_written_at: dict[ObjectKey, float] = {}
        self.applied_manifests: dict[tuple[str, str, str], tuple[str, Any]] = {}
        self.terminating_namespaces: set[str] = set()  # namespaces that are being deleted, and our rights in them
        self.deleted_replays: list[Body] = []  # Replays whose traces in a ledger are to be forgotten

    @property
    def workers(self) -> WorkerSettings:
        """How workers should be."""
        asked = self.settings
        image = WorkerImage(asked.image, asked.image_pull_policy, asked.image_pull_secrets)
        return WorkerSettings(image, asked.allow_addresses, asked.worker_network_policy, asked.worker_pod_monitor)

    def on_change(self, resource: Resource, old: Body | None, new: Body | None) -> None:
        """Wake whom it concerns."""
        body = new or old or {}
        if resource not in KINDS:
            if new is None:
                self.applied_manifests.pop((resource.plural, body["metadata"]["namespace"], body["metadata"]["name"]), None)
            self._enqueue_owner(body)
            return
        meta = body["metadata"]
        if resource is QUEUES and old is not None and (new is None or not is_same_object(old, new)):
            self.forget_queue(meta["namespace"], meta["name"])  # another of its name has other letters
        turned = spec_identity(old) != spec_identity(new)
        if turned:
            self.workqueue.add(ObjectKey(resource, meta["namespace"], meta["name"]))
        # During the first list everything is woken anyway.
        if (turned or resource is REPLAYS) and self.informers.have_synced:
            for where, name, plural in dependents(self.informers, resource, body):
                self.workqueue.add(ObjectKey(plural, where, name))
        if new is None and resource is REPLAYS:
            self.deleted_replays.append(body)

    def forget_queue(self, namespace: str, queue: str) -> None:
        """What was read and seen of a queue that is gone."""
        for known in (self.box_stats, self.box_errors, self.surveys, self.owned_boxes, self.losses):
            known.pop((namespace, queue), None)

    def _enqueue_owner(self, body: Body) -> None:
        for owner in body["metadata"].get("ownerReferences", ()):
            if owner["kind"] in RESOURCE_BY_KIND:
                self.workqueue.add(ObjectKey(RESOURCE_BY_KIND[owner["kind"]], body["metadata"]["namespace"], owner["name"]))


def spec_identity(body: Body | None) -> Any:
    """What a user wants of an object, without what we said about it."""
    if body is None:
        return None
    meta = body["metadata"]
    keys = ("uid", "generation", "annotations", "deletionTimestamp", "finalizers")
    return [meta.get(key) for key in keys]


def informer_specs(settings: Settings) -> list[InformerSpec]:
    """The kinds we keep informers of; children by our label alone."""
    children = [CONFIG_MAPS, ACCOUNTS, DEPLOYMENTS, JOBS]
    children += [NETWORK_POLICIES] if settings.worker_network_policy else []
    children += [POD_MONITORS] if settings.worker_pod_monitor else []
    ours = [InformerSpec(one, "", {QUEUES: QUEUE_INDEXES, REPLAYS: REPLAY_INDEXES}.get(one, {})) for one in KINDS]
    return ours + [InformerSpec(one, MANAGED_SELECTOR, CHILD_INDEXES) for one in children]
