"""`python -m deadletter operator`: list, watch, judge, sweep, until told to stop."""

import asyncio
import gc
import signal
import time
from contextlib import suppress
from functools import partial

import kopf
import structlog

from deadletter import logs, metrics
from deadletter.controller import admission, garbage, health, kopf_watch, sweep, terminating_namespaces
from deadletter.controller.context import KINDS, ObjectKey, OperatorContext
from deadletter.controller.reconcile import loop as passes
from deadletter.kube import connect
from deadletter.settings import Settings

log = structlog.stdlib.get_logger("operator")
SHUTDOWN_TIMEOUT_S = 20.0
KOPF_RESTART_DELAY_S = 5.0
GC_THRESHOLD = 10_000  # objects made before the youngest are looked through


def count_request(verb: str, path: str, code: int) -> None:
    """One request to the API server."""
    resource = next((part for part in reversed(path.split("/")) if part in PLURALS), "other")
    metrics.API_REQUESTS.labels(verb, resource, str(code)).inc()


PLURALS = frozenset(
    {"brokerconnections", "retrypolicies", "deadletterqueues", "replays", "configmaps", "serviceaccounts"}
    | {"deployments", "jobs", "networkpolicies", "podmonitors", "pods", "services", "secrets", "events", "namespaces"}
)


def tune_gc() -> None:
    """What is known stays for long: looked through once, else each look of the collector stops all for 100 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def resync(context: OperatorContext) -> None:
    """Everything is judged again slowly, spread over the interval: the last net under every missed event."""
    while True:
        tune_gc()
        keys = [
            ObjectKey(resource, body["metadata"]["namespace"], body["metadata"]["name"])
            for resource in KINDS
            for body in context.informers[resource].all()
        ]
        pause = context.settings.rejudge_seconds / max(1, len(keys))
        context.liveness.resynced_at = time.monotonic()
        if not keys:
            await asyncio.sleep(pause)
        for key in keys:
            await asyncio.sleep(pause)
            context.workqueue.add(key)


async def _enqueue_when_synced(context: OperatorContext) -> None:
    while not context.informers.have_synced:  # noqa: ASYNC110 - once, at the start
        await asyncio.sleep(0.05)
    for resource in KINDS:
        for body in context.informers[resource].all():
            context.workqueue.add(ObjectKey(resource, body["metadata"]["namespace"], body["metadata"]["name"]))


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """One operator, from its first list to its last word."""
    async with connect(settings.api_rate, settings.api_burst, count_request) as kube:
        context = OperatorContext(settings, kube)
        runner = await health.serve(context, settings.health_port)
        tasks = context.informers.start(kube, settings.relist_seconds)
        leaving, listed = asyncio.create_task(stop.wait()), asyncio.create_task(_enqueue_when_synced(context))
        try:
            await asyncio.wait([*tasks, listed, leaving], return_when=asyncio.FIRST_COMPLETED)
            if listed.done() and not stop.is_set():
                log.info("everything is listed", queues=len(context.informers[KINDS[2]]))
                tasks += _start_tasks(context, stop)
            await _wait_for_stop(tasks, leaving)
        finally:
            await _shut_down(context, [*tasks, listed], runner)


def _start_tasks(context: OperatorContext, stop: asyncio.Event) -> list[asyncio.Task[None]]:
    workers = [context.workqueue.run(partial(passes.reconcile_one, context)) for _ in range(context.settings.concurrency)]
    others = [sweep.sweep_forever(context), resync(context)]
    others += [garbage.collect_forever(context), garbage.read_for_ever(context)]
    others += [terminating_namespaces.watch_forever(context)] if context.settings.namespaces else []
    return [asyncio.create_task(one) for one in [*workers, *others, _run_kopf_forever(context, stop)]]


async def _run_kopf_forever(context: OperatorContext, stop: asyncio.Event) -> None:
    """The watches and webhooks of kopf; when it gives up it is begun anew: the informers go on without it."""
    while not stop.is_set():
        try:
            await _run_kopf(context, stop)
            stop.set()  # kopf takes the signals for itself
        except Exception as error:  # noqa: BLE001 - whatever it is, the couriers' queues must not wait for it
            log.warning("kopf ended and is begun anew", error=type(error).__name__)
            await asyncio.sleep(KOPF_RESTART_DELAY_S)


async def _run_kopf(context: OperatorContext, stop: asyncio.Event) -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    kopf_watch.configure(settings)
    kopf_watch.register(registry, context)
    admission.register(registry, settings, context)
    chosen = context.settings.namespaces
    await kopf.operator(
        registry=registry,
        settings=settings,
        clusterwide=not chosen,
        namespaces=chosen,
        stop_flag=stop,
        standalone=True,
    )


async def _wait_for_stop(tasks: list[asyncio.Task[None]], leaving: asyncio.Task[bool]) -> None:
    """A task of ours that ends before we are told to is a fault: end, and be started again."""
    done, _ = await asyncio.wait([*tasks, leaving], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not leaving and not leaving.done():
            raise RuntimeError(f"{task.get_name()} ended") from task.exception()


async def _shut_down(context: OperatorContext, tasks: list[asyncio.Task[None]], runner: object) -> None:
    """Let go of everything, in bounded time."""
    for task in tasks:
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await asyncio.gather(*tasks, return_exceptions=True)
            await context.pool.close_all()
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
    logs.configure(
        level=settings.log_level, library_levels=logs.OPERATOR_LIBRARY_LEVELS, format_tracebacks=False
    )
    metrics.BUILD.info({"version": settings.version})
    return asyncio.run(_main(settings))
