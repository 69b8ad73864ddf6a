"""kopf's part: it watches our four kinds and hands what it sees to the informers; it writes nothing itself."""

from typing import Any

import kopf

from deadletter.controller.context import OperatorContext
from deadletter.kube import CONNECTIONS, POLICIES, QUEUES, REPLAYS, Resource

GROUP, VERSION = "deadletter.dev", "v1alpha1"
# A watch that is refused is tried again for ever: the couriers go on, and so must we.
RETRY_DELAYS_S = (1, 2, 3, 5, 8, 13, *(15,) * 5000)


def configure(settings: kopf.OperatorSettings) -> None:
    """Own prefixes, patience, and no writes of kopf's own."""
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = RETRY_DELAYS_S
    settings.watching.inactivity_timeout = 70
    settings.batching.worker_limit = None
    settings.batching.idle_timeout = 0.5
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{GROUP}")


def register(registry: kopf.OperatorRegistry, context: OperatorContext) -> None:
    """Who we are, and an event handler per kind."""

    @kopf.on.login(registry=registry)
    async def login(**said: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**said) or kopf.login_with_kubeconfig(**said)

    for resource in (CONNECTIONS, POLICIES, QUEUES, REPLAYS):
        _register_watch(registry, context, resource)


def _register_watch(registry: kopf.OperatorRegistry, context: OperatorContext, resource: Resource) -> None:
    @kopf.on.event(GROUP, VERSION, resource.plural, registry=registry, id=resource.plural)
    async def hear(event: Any, **_: Any) -> None:
        body = dict(event["object"])
        body["metadata"] = dict(body["metadata"])
        if event["type"] == "DELETED":
            context.informers[resource].remove(body)
        else:
            context.informers[resource].upsert(body)
