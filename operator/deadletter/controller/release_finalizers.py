"""Entry point of `python -m deadletter release-finalizers`: prepare an uninstall, so that queues can be deleted."""

import asyncio
import sys

from deadletter.controller.context import FINALIZER
from deadletter.controller.reconcile.queue import RELEASED_ANNOTATION
from deadletter.kube import QUEUES, ApiError, KubeClient, connect
from deadletter.settings import Settings
from deadletter.wall_clock import now_ms


async def release_all(kube: KubeClient, namespaces: tuple[str, ...]) -> int:
    """Remove our finalizer from every queue and return how many had it; their boxes stay on the broker."""
    released = 0
    scopes: list[str | None] = [*namespaces] or [None]
    for scope in scopes:
        bodies, _ = await kube.list(QUEUES, scope)
        for meta in (body["metadata"] for body in bodies):
            if FINALIZER in meta.get("finalizers", ()):
                others = [finalizer for finalizer in meta["finalizers"] if finalizer != FINALIZER]
                # Without this annotation the operator, which still runs, would add the finalizer again.
                annotations = {RELEASED_ANNOTATION: str(now_ms())}
                patch = {"metadata": {"uid": meta["uid"], "finalizers": others, "annotations": annotations}}
                await kube.patch(QUEUES, meta["namespace"], meta["name"], patch)
                released += 1
    return released


async def _main(settings: Settings) -> int:
    async with connect(settings.api_rate, settings.api_burst) as kube:
        try:
            released = await release_all(kube, settings.namespaces)
        except ApiError as error:
            if error.status == 404:  # the CRDs are not installed: there is nothing to release
                return 0
            print(f"removing the finalizers failed: {error}", file=sys.stderr)  # noqa: T201
            return 1
    print(f"removed the finalizer from {released} queues")  # noqa: T201
    return 0


def main(argv: list[str]) -> int:
    """Remove the finalizers and print how many queues had one."""
    del argv
    return asyncio.run(_main(Settings()))
