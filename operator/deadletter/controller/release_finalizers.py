"""`python -m deadletter release-finalizers`: before an uninstall, let every queue go without its boxes."""

import asyncio
import sys

from deadletter.clock import now_ms
from deadletter.controller.context import FINALIZER
from deadletter.controller.reconcile.queue import RELEASED_ANNOTATION
from deadletter.kube import QUEUES, ApiError, Cluster, connect
from deadletter.settings import Settings


async def release_all(kube: Cluster, namespaces: tuple[str, ...]) -> int:
    """Take our finalizer off every queue; gives how many carried it."""
    released = 0
    scopes: list[str | None] = [*namespaces] or [None]
    for scope in scopes:
        bodies, _ = await kube.list(QUEUES, scope)
        for meta in (body["metadata"] for body in bodies):
            if FINALIZER in meta.get("finalizers", ()):
                kept = [one for one in meta["finalizers"] if one != FINALIZER]
                # The operator still runs: without the mark it would put the finalizer back.
                mark = {RELEASED_ANNOTATION: str(now_ms())}
                patch = {"metadata": {"uid": meta["uid"], "finalizers": kept, "annotations": mark}}
                await kube.patch(QUEUES, meta["namespace"], meta["name"], patch)
                released += 1
    return released


async def _main(settings: Settings) -> int:
    async with connect(settings.api_rate, settings.api_burst) as kube:
        try:
            released = await release_all(kube, settings.namespaces)
        except ApiError as error:
            if error.status == 404:  # the kinds are not installed: nothing to release
                return 0
            print(f"finalizers could not be released: {error}", file=sys.stderr)  # noqa: T201
            return 1
    print(f"released {released} queues")  # noqa: T201
    return 0


def main(argv: list[str]) -> int:
    """Release and say how many."""
    del argv
    return asyncio.run(_main(Settings()))
