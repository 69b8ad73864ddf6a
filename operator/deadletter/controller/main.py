"""Entry point of `python -m deadletter operator`: run the informers, workers and loops until SIGTERM."""

import asyncio
import gc
import signal
import time
from contextlib import suppress
from functools import partial

import kopf
import structlog
from aiohttp import web

from deadletter import logs, metrics
from deadletter.controller import admission, deleted_replays, depth_sweep, health, kopf_watch, terminating_namespaces
from deadletter.controller.context import KINDS, ObjectKey, OperatorContext, object_key
from deadletter.controller.reconcile.facts import secret_users
from deadletter.controller.reconcile.loop import reconcile_one
from deadletter.kube import QUEUES, connect
from deadletter.settings import Settings

log = structlog.stdlib.get_logger("operator")
SHUTDOWN_TIMEOUT_S = 20.0
KOPF_RESTART_DELAY_S = 5.0
GC_THRESHOLD = 10_000  # new objects before the collector looks at the youngest generation
PLURALS = frozenset(
    {"brokerconnections", "retrypolicies", "deadletterqueues", "replays", "configmaps", "serviceaccounts"}
    | {"deployments", "jobs", "networkpolicies", "podmonitors", "pods", "services", "secrets", "events", "namespaces"}
)


def count_request(verb: str, path: str, code: int) -> None:
    """Count a request to the API server by verb, resource and status code."""
    resource = next((part for part in reversed(path.split("/")) if part in PLURALS), "other")
    metrics.API_REQUESTS.labels(verb, resource, str(code)).inc()


def tune_gc() -> None:
    """Exclude the cached objects, which live long, from garbage collection: a full one stops everything for 100 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def resync(context: OperatorContext) -> None:
    """Reconcile every object again, spread over the interval, in case that an event was missed."""
    while True:
        tune_gc()
        keys = _all_keys(context)
        pause = context.settings.rejudge_seconds / max(1, len(keys))
        context.liveness.resynced_at = time.monotonic()
        if not keys:
            await asyncio.sleep(pause)
        for key in keys:
            await asyncio.sleep(pause)
            context.workqueue.add(key)


def _all_keys(context: OperatorContext) -> list[ObjectKey]:
    return [object_key(kind, body) for kind in KINDS for body in context.informers[kind].all()]


async def _enqueue_when_synced(context: OperatorContext) -> None:
    while not context.informers.have_synced:  # noqa: ASYNC110 - once, at the start
        await asyncio.sleep(0.05)
    for key in _all_keys(context):
        context.workqueue.add(key)


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Run one operator until `stop` is set."""
    async with connect(settings.api_rate, settings.api_burst, count_request) as kube:
        context = OperatorContext(settings, kube)
        runner = await health.serve(context, settings.health_port)
        tasks = context.informers.start(kube, settings.relist_seconds)
        stopping, synced = asyncio.create_task(stop.wait()), asyncio.create_task(_enqueue_when_synced(context))
        try:
            await asyncio.wait([*tasks, synced, stopping], return_when=asyncio.FIRST_COMPLETED)
            if synced.done() and not stop.is_set():
                log.info("informers have synced", queues=len(context.informers[QUEUES]))
                tasks += _start_tasks(context, stop)
            await _wait_for_stop(tasks, stopping)
        finally:
            await _shut_down(context, [*tasks, synced], runner)


def _start_tasks(context: OperatorContext, stop: asyncio.Event) -> list[asyncio.Task[None]]:
    workers = [context.workqueue.run(partial(reconcile_one, context)) for _ in range(context.settings.concurrency)]
    loops = [depth_sweep.sweep_forever(context), resync(context), deleted_replays.collect_forever(context)]
    loops += [context.secrets.refresh_forever(partial(secret_users, context), context.workqueue.add)]
    loops += [terminating_namespaces.watch_forever(context)] if context.settings.namespaces else []
    return [asyncio.create_task(task) for task in [*workers, *loops, _run_kopf_forever(context, stop)]]


async def _run_kopf_forever(context: OperatorContext, stop: asyncio.Event) -> None:
    """Run kopf's watches and webhooks, and restart them after an error; the informers go on meanwhile."""
    while not stop.is_set():
        try:
            await _run_kopf(context, stop)
            stop.set()  # kopf installs its own signal handlers, so its end is our signal
        except Exception as error:  # noqa: BLE001 - no error of kopf may stop the reconcile loops
            log.warning("kopf failed and is restarted", error=type(error).__name__)
            await asyncio.sleep(KOPF_RESTART_DELAY_S)


async def _run_kopf(context: OperatorContext, stop: asyncio.Event) -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    kopf_watch.configure(settings)
    kopf_watch.register(registry, context)
    admission.register(registry, settings, context)
    namespaces = context.settings.namespaces
    await kopf.operator(
        registry=registry,
        settings=settings,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
        standalone=True,
    )


async def _wait_for_stop(tasks: list[asyncio.Task[None]], stopping: asyncio.Task[bool]) -> None:
    """Wait for the signal to stop; raises RuntimeError if a task ends before it, so that the pod restarts."""
    done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not stopping and not stopping.done():
            raise RuntimeError(f"task {task.get_name()} ended unexpectedly") from task.exception()


async def _shut_down(context: OperatorContext, tasks: list[asyncio.Task[None]], runner: web.AppRunner) -> None:
    """Cancel all tasks and close all connections within the timeout."""
    for task in tasks:
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await asyncio.gather(*tasks, return_exceptions=True)
            await context.pool.close_all()
            await runner.cleanup()
    log.info("operator stopped")


async def _main(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, stop)
    return 0


def main(argv: list[str]) -> int:
    """Run the operator. It takes no arguments; its settings are environment variables."""
    del argv
    settings = Settings()
    logs.configure(level=settings.log_level, library_levels=logs.OPERATOR_LIBRARY_LEVELS, format_tracebacks=False)
    metrics.BUILD_INFO.info({"version": settings.version})
    return asyncio.run(_main(settings))
