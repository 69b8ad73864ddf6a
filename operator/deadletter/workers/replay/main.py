"""The replayer, `python -m deadletter replay`: runs one Replay from its assignment to its exit code.

workers/exit_status.py lists the exit codes; the Job of the Replay decides by them whether to start another pod.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from deadletter import logs
from deadletter.api.delivery import HttpDelivery
from deadletter.api.replay_spec import Rate
from deadletter.api.worker_config import Boxes, ReplayAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Offsets
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, NotAuthorised
from deadletter.core.cel import PredicateError
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import Span
from deadletter.net.secrets import Secrets, mounted_secrets
from deadletter.wall_clock import now_ms
from deadletter.workers import metrics, process
from deadletter.workers.backoff import RetryBudget, wait_for_event
from deadletter.workers.delivery.open import open_delivery
from deadletter.workers.environment import AssignmentError, WorkerEnvironment
from deadletter.workers.exit_status import (
    COUNT_FIELDS,
    NEEDS_INTERVENTION,
    TRY_AGAIN,
    ExitStatus,
    status_of_broker_error,
)
from deadletter.workers.health import ProbeHandlers, serve_probes
from deadletter.workers.live_config import LiveConfigFile
from deadletter.workers.rate_limit import InFlightLimit, TokenBucket
from deadletter.workers.replay.context import MatchQuota, ReplayContext, build_selection
from deadletter.workers.replay.explicit_ids import PreviewNotFound, explicit_offsets
from deadletter.workers.replay.publication import PublicationBuilder
from deadletter.workers.replay.run import STOP_REQUESTED, ReplayRun
from deadletter.workers.replay.session import (
    PartitionSession,
    ReadOnlySession,
    WritingSession,
    metrics_recorder,
)
from deadletter.workers.replay.sinks import SERVICE_TIMEOUT_S, BrokerSink, ServiceSink, Sink, Undelivered


async def run_replay(
    assignment: ReplayAssignment,
    broker: Broker,
    stop: asyncio.Event,
    sink: Sink | None = None,
    rate: Callable[[], Rate | None] = lambda: None,
) -> ExitStatus:
    """Run the Replay on an open broker, or continue it; every end, also an error, is an exit status."""
    try:
        prepared = await _prepare(assignment, broker, stop, sink, rate)
        if prepared is None:
            return STOP_REQUESTED
        run, window = prepared
        return await run.run(window)
    except PredicateError as error:
        return ExitStatus(NEEDS_INTERVENTION, Reason.InvalidSpec, f"select.where: {error}")
    except PreviewNotFound as error:
        return ExitStatus(NEEDS_INTERVENTION, Reason.ReplayNotFound, str(error))
    except Undelivered as error:
        return ExitStatus(TRY_AGAIN, Reason.DeliveryFailed, str(error))
    except BrokerError as error:
        return status_of_broker_error(error)


async def _prepare(
    assignment: ReplayAssignment,
    broker: Broker,
    stop: asyncio.Event,
    sink: Sink | None,
    rate: Callable[[], Rate | None],
) -> tuple[ReplayRun, tuple[Span, ...]] | None:
    """Return the run and its window when the broker answers; None if the stop came first."""
    reads_archive = assignment.spec.select.state == "Archived"
    budget = RetryBudget()
    while True:
        try:
            window = await broker.window(assignment.boxes.dead, reads_archive)
            sessions = await _create_sessions(assignment, broker, window, reads_archive)
            context = await _build_context(assignment, broker, sessions, sink, rate, stop)
            return ReplayRun(context, sessions), window
        except BrokerUnreachable as error:
            await wait_for_event(stop, budget.delay_after(error))
        if stop.is_set():
            return None


async def _create_sessions(
    assignment: ReplayAssignment, broker: Broker, window: tuple[Span, ...], reads_archive: bool
) -> list[PartitionSession]:
    boxes = assignment.boxes
    if assignment.observe:
        settled = await _read_settled(broker, boxes)
        return [ReadOnlySession(span.partition, settled.get(span.partition)) for span in window]
    uid, record = assignment.uid, metrics_recorder(assignment)
    return [
        WritingSession(broker, boxes.dead, boxes.ledger, span.partition, uid, reads_archive, record) for span in window
    ]


async def _read_settled(broker: Broker, boxes: Boxes) -> Mapping[int, Offsets]:
    try:
        return await broker.settled_offsets(boxes.dead, boxes.ledger)
    except NotAuthorised:
        return {}  # Kafka reports NotAuthorised, not a missing topic, to users who may only read the dead box


async def _build_context(
    assignment: ReplayAssignment,
    broker: Broker,
    sessions: list[PartitionSession],
    sink: Sink | None,
    rate: Callable[[], Rate | None],
    stop: asyncio.Event,
) -> ReplayContext:
    def current_rate() -> Rate | None:
        return rate() or assignment.spec.rate

    def letters_per_second() -> int | None:
        current = current_rate()
        return None if current is None else current.per_second

    def max_in_flight() -> int | None:
        current = current_rate()
        return None if current is None else current.max_in_flight

    selection = build_selection(assignment)
    if selection.where:
        _ = selection.predicate  # compiles the expression, so that a wrong one fails before anything is written
    return ReplayContext(
        assignment=assignment,
        broker=broker,
        selection=selection,
        builder=PublicationBuilder(assignment, broker, now_ms),
        tokens=TokenBucket(letters_per_second, stop),
        in_flight_limit=InFlightLimit(max_in_flight),
        current_rate=current_rate,
        sink=sink,
        quota=MatchQuota(sessions, selection.limit),
        explicit_offsets=await explicit_offsets(assignment, broker, [session.partition for session in sessions]),
        clock=now_ms,
        stop=stop,
    )


async def open_sink(assignment: ReplayAssignment, secrets: Secrets, stack: AsyncExitStack) -> Sink | None:
    """Open the target if letters go to a service or another broker; the writer of a session reaches all others."""
    target = assignment.target
    if target.kind == "Service" and target.url:
        http = assignment.http or HttpDelivery(url=target.url)
        delivery = open_delivery(http, target.url, SERVICE_TIMEOUT_S, secrets, assignment.allow)
        stack.push_async_callback(delivery.close)
        return ServiceSink(delivery)
    if target.broker is not None:
        other: Broker = await stack.enter_async_context(open_broker(target.broker, secrets, assignment.allow))
        return BrokerSink(other, assignment.uid)
    return None


async def _connect_and_run(
    assignment: ReplayAssignment, environment: WorkerEnvironment, stop: asyncio.Event
) -> ExitStatus:
    secrets = mounted_secrets(environment.secrets_dir)
    live = LiveConfigFile(environment.assignment_dir)
    async with AsyncExitStack() as stack:
        try:
            broker = await stack.enter_async_context(open_broker(assignment.broker, secrets, assignment.allow))
            sink = await open_sink(assignment, secrets, stack)
        except BrokerError as error:
            return status_of_broker_error(error)
        await stack.enter_async_context(live.refreshing())
        return await run_replay(assignment, broker, stop, sink, lambda: live.current.rate)


async def run_worker(stop: asyncio.Event) -> int:
    """Read the assignment, run the Replay, write the termination message and return the exit code."""
    environment = WorkerEnvironment.from_environment()
    log = logs.get(__name__)
    try:
        assignment = environment.read_assignment(ReplayAssignment)
    except AssignmentError as error:
        environment.write_termination_message("InvalidSpec", str(error))
        return NEEDS_INTERVENTION
    async with serve_probes(ProbeHandlers(registry=metrics.REPLAY_REGISTRY), environment.health_port):
        status = await _connect_and_run(assignment, environment, stop)
    counts = {name: count for name, count in status.counts.items() if name in COUNT_FIELDS}
    log.info("replay ended", replay=assignment.name, reason=str(status.reason), code=status.code, **counts)
    environment.write_termination_message(str(status.reason), status.message, **status.counts)
    return status.code


def main(argv: list[str]) -> int:
    """Run the replayer; it takes no arguments."""
    del argv
    logs.configure(role="replay")
    process.tune_malloc()
    return process.run(run_worker)
