"""`python -m deadletter operator`: list, watch, judge, sweep, until told to stop."""

import asyncio
import gc
import signal
import time
from contextlib import suppress
from functools import partial

import kopf
import structlog

from deadletter import metrics
from deadletter.controller import admission, garbage, health, kopf_watch, logs, sweep, terminating_namespaces
from deadletter.controller.context import KINDS, Operation, Thing
from deadletter.controller.reconcile import loop as passes
from deadletter.kube import connect
from deadletter.settings import Settings

log = structlog.stdlib.get_logger("operator")
FAREWELL_SECONDS = 20.0
KOPF_SECONDS = 5.0
GARBAGE = 10_000  # objects made before the youngest are looked through


def count(verb: str, path: str, code: int) -> None:
    """One request to the API server."""
    resource = next((part for part in reversed(path.split("/")) if part in PLURALS), "other")
    metrics.API_REQUESTS.labels(verb, resource, str(code)).inc()


PLURALS = frozenset(
    {"brokerconnections", "retrypolicies", "deadletterqueues", "replays", "configmaps", "serviceaccounts"}
    | {"deployments", "jobs", "networkpolicies", "podmonitors", "pods", "services", "secrets", "events", "namespaces"}
)


def settle_memory() -> None:
    """What is known stays for long: looked through once, else each look of the collector stops all for 100 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


async def rejudge(operation: Operation) -> None:
    """Everything is judged again slowly, spread over the interval: the last net under every missed event."""
    while True:
        settle_memory()
        things = [
            Thing(resource, body["metadata"]["namespace"], body["metadata"]["name"])
            for resource in KINDS
            for body in operation.snapshots[resource].all()
        ]
        pause = operation.settings.rejudge_seconds / max(1, len(things))
        operation.pulse.judged_at = time.monotonic()
        if not things:
            await asyncio.sleep(pause)
        for thing in things:
            await asyncio.sleep(pause)
            operation.work.wake(thing)


async def _listed(operation: Operation) -> None:
    while not operation.snapshots.are_listed:  # noqa: ASYNC110 - once, at the start
        await asyncio.sleep(0.05)
    for resource in KINDS:
        for body in operation.snapshots[resource].all():
            operation.work.wake(Thing(resource, body["metadata"]["namespace"], body["metadata"]["name"]))


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """One operator, from its first list to its last word."""
    async with connect(settings.api_rate, settings.api_burst, count) as cluster:
        operation = Operation(settings, cluster)
        runner = await health.serve(operation, settings.health_port)
        tasks = operation.snapshots.follow(cluster, settings.relist_seconds)
        leaving, listed = asyncio.create_task(stop.wait()), asyncio.create_task(_listed(operation))
        try:
            await asyncio.wait([*tasks, listed, leaving], return_when=asyncio.FIRST_COMPLETED)
            if listed.done() and not stop.is_set():
                log.info("everything is listed", queues=len(operation.snapshots[KINDS[2]]))
                tasks += _start(operation, stop)
            await _until_told(tasks, leaving)
        finally:
            await _end(operation, [*tasks, listed], runner)


def _start(operation: Operation, stop: asyncio.Event) -> list[asyncio.Task[None]]:
    workers = [operation.work.run(partial(passes.look, operation)) for _ in range(operation.settings.concurrency)]
    others = [sweep.sweep_for_ever(operation), rejudge(operation)]
    others += [garbage.clean_for_ever(operation), garbage.read_for_ever(operation)]
    others += [terminating_namespaces.look_for_ever(operation)] if operation.settings.namespaces else []
    return [asyncio.create_task(one) for one in [*workers, *others, _listen(operation, stop)]]


async def _listen(operation: Operation, stop: asyncio.Event) -> None:
    """The watches and webhooks of kopf; when it gives up it is begun anew: the snapshots go on without it."""
    while not stop.is_set():
        try:
            await _kopf(operation, stop)
            stop.set()  # kopf takes the signals for itself
        except Exception as error:  # noqa: BLE001 - whatever it is, the couriers' queues must not wait for it
            log.warning("kopf ended and is begun anew", error=type(error).__name__)
            await asyncio.sleep(KOPF_SECONDS)


async def _kopf(operation: Operation, stop: asyncio.Event) -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    kopf_watch.settle(settings)
    kopf_watch.register(registry, operation)
    admission.register(registry, settings, operation)
    chosen = operation.settings.namespaces
    await kopf.operator(
        registry=registry,
        settings=settings,
        clusterwide=not chosen,
        namespaces=chosen,
        stop_flag=stop,
        standalone=True,
    )


async def _until_told(tasks: list[asyncio.Task[None]], leaving: asyncio.Task[bool]) -> None:
    """A task of ours that ends before we are told to is a fault: end, and be started again."""
    done, _ = await asyncio.wait([*tasks, leaving], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not leaving and not leaving.done():
            raise RuntimeError(f"{task.get_name()} ended") from task.exception()


async def _end(operation: Operation, tasks: list[asyncio.Task[None]], runner: object) -> None:
    """Let go of everything, in bounded time."""
    for task in tasks:
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await asyncio.gather(*tasks, return_exceptions=True)
            await operation.pool.close_all()
            await runner.cleanup()  # type: ignore[attr-defined]
    log.info("stopped")


async def _main(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, stop)
    return 0


def main(argv: list[str]) -> int:
    """Run the operator; it takes no arguments, only the environment."""
    del argv
    settings = Settings()
    logs.configure(settings.log_level)
    metrics.BUILD.info({"version": settings.version})
    return asyncio.run(_main(settings))
