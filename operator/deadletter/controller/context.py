"""Everything the handlers share: settings, doors, snapshots, what waits for a pass and what the sweep has read."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deadletter.api.queue_status import OwnedBox
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import BoxState
from deadletter.controller.state.broker_pool import Pool
from deadletter.controller.state.dependents import OF_CHILDREN, OF_QUEUES, OF_REPLAYS, concerned
from deadletter.controller.state.informer import Followed, Snapshots, same
from deadletter.controller.state.secret_cache import SecretStore
from deadletter.controller.state.workqueue import Work
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
from deadletter.plan.boxes import PlannedBox
from deadletter.plan.facts import Loss
from deadletter.plan.pod_template import Image
from deadletter.plan.worker_manifests import Workers
from deadletter.settings import Settings

FINALIZER = "deadletter.dev/boxes"
MANAGED = "app.kubernetes.io/managed-by=dlq-operator"
KINDS = (CONNECTIONS, POLICIES, QUEUES, REPLAYS)
BY_KIND = {resource.kind: resource for resource in KINDS}


class Thing(NamedTuple):
    """One object of ours by its address."""

    resource: Resource
    namespace: str
    name: str


@dataclass(slots=True)
class Survey:
    """What the broker said of a queue's boxes, which were asked for, and when."""

    planned: tuple[PlannedBox, ...]
    states: dict[str, BoxState]
    at: float
    ledger_lacks: str | None = None  # what the broker refuses to give the ledger; None: not asked yet


@dataclass(slots=True)
class Pulse:
    """When we last looked: for the probes."""

    passed_at: float = field(default_factory=time.monotonic)
    swept_at: float = field(default_factory=time.monotonic)
    judged_at: float = field(default_factory=time.monotonic)


class Operation:
    """One running operator."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self.settings = settings
        self.cluster = cluster
        self.secrets = SecretStore(
            cluster, settings.secrets_seconds, settings.secrets_require_label, settings.secrets_grant
        )
        self.pool = Pool(self.secrets, settings.allow_addresses)
        self.work: Work[Thing] = Work()
        self.pulse = Pulse()
        self.snapshots = Snapshots(watched(settings), settings.namespaces, self.changed)
        self.readings: dict[tuple[str, str], BoxStats] = {}
        self.objections: dict[tuple[str, str], BrokerError] = {}  # what only reading a box shows
        self.surveys: dict[tuple[str, str], Survey] = {}
        self.owned: dict[tuple[str, str], tuple[OwnedBox, ...]] = {}
        self.losses: dict[tuple[str, str], Loss] = {}  # found since we started, with what the status says of before
        self.written_at: dict[Thing, float] = {}
        self.applied: dict[tuple[str, str, str], tuple[str, Any]] = {}
        self.going: set[str] = set()  # namespaces that are being deleted, and our rights in them
        self.gone: list[Body] = []  # Replays whose traces in a ledger are to be forgotten

    @property
    def workers(self) -> Workers:
        """How workers should be."""
        asked = self.settings
        image = Image(asked.image, asked.image_pull_policy, asked.image_pull_secrets)
        return Workers(image, asked.allow_addresses, asked.worker_network_policy, asked.worker_pod_monitor)

    def changed(self, resource: Resource, old: Body | None, new: Body | None) -> None:
        """Wake whom it concerns."""
        body = new or old or {}
        if resource not in KINDS:
            if new is None:
                self.applied.pop((resource.plural, body["metadata"]["namespace"], body["metadata"]["name"]), None)
            self._wake_owner(body)
            return
        meta = body["metadata"]
        if resource is QUEUES and old is not None and (new is None or not same(old, new)):
            self.forget(meta["namespace"], meta["name"])  # another of its name has other letters
        turned = asks(old) != asks(new)
        if turned:
            self.work.wake(Thing(resource, meta["namespace"], meta["name"]))
        # During the first list everything is woken anyway.
        if (turned or resource is REPLAYS) and self.snapshots.are_listed:
            for where, name, plural in concerned(self.snapshots, resource, body):
                self.work.wake(Thing(plural, where, name))
        if new is None and resource is REPLAYS:
            self.gone.append(body)

    def forget(self, namespace: str, queue: str) -> None:
        """What was read and seen of a queue that is gone."""
        for known in (self.readings, self.objections, self.surveys, self.owned, self.losses):
            known.pop((namespace, queue), None)

    def _wake_owner(self, body: Body) -> None:
        for owner in body["metadata"].get("ownerReferences", ()):
            if owner["kind"] in BY_KIND:
                self.work.wake(Thing(BY_KIND[owner["kind"]], body["metadata"]["namespace"], owner["name"]))


def asks(body: Body | None) -> Any:
    """What a user wants of an object, without what we said about it."""
    if body is None:
        return None
    meta = body["metadata"]
    keys = ("uid", "generation", "annotations", "deletionTimestamp", "finalizers")
    return [meta.get(key) for key in keys]


def watched(settings: Settings) -> list[Followed]:
    """The kinds we keep snapshots of; children by our label alone."""
    children = [CONFIG_MAPS, ACCOUNTS, DEPLOYMENTS, JOBS]
    children += [NETWORK_POLICIES] if settings.worker_network_policy else []
    children += [POD_MONITORS] if settings.worker_pod_monitor else []
    ours = [Followed(one, "", {QUEUES: OF_QUEUES, REPLAYS: OF_REPLAYS}.get(one, {})) for one in KINDS]
    return ours + [Followed(one, MANAGED, OF_CHILDREN) for one in children]
