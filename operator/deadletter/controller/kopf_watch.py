"""Connect kopf: it watches our four kinds and passes each event to the informers. kopf itself writes nothing."""

from typing import Any

import kopf

from deadletter.controller.context import KINDS, OperatorContext
from deadletter.kube import Resource

GROUP, VERSION = "deadletter.dev", "v1alpha1"
# More than 20 hours, in practice without end: couriers work without the API server, so the operator waits for it.
RETRY_DELAYS_S = (1, 2, 3, 5, 8, 13, *(15,) * 5000)


def configure(settings: kopf.OperatorSettings) -> None:
    """Set our own prefixes and timeouts, and turn off kopf's Events, peering and writes."""
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
    """Register the login and an event handler for each kind."""

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    for resource in KINDS:
        _register_watch(registry, context, resource)


def _register_watch(registry: kopf.OperatorRegistry, context: OperatorContext, resource: Resource) -> None:
    @kopf.on.event(GROUP, VERSION, resource.plural, registry=registry, id=resource.plural)
    async def on_event(event: Any, **_: Any) -> None:
        body = dict(event["object"])
        body["metadata"] = dict(body["metadata"])
        if event["type"] == "DELETED":
            context.informers[resource].remove(body)
        else:
            context.informers[resource].upsert(body)
