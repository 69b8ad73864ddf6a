"""A Replay on an open broker: everything a course needs is brought together here."""

import asyncio
from collections.abc import Callable, Mapping

from deadletter.api.assignments import Boxes, ReplayAssignment
from deadletter.api.replays import Rate
from deadletter.brokers.contract import Broker, Offsets
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, NotAuthorised
from deadletter.clock import now_ms
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import Span
from deadletter.core.selection import PredicateError
from deadletter.workers.backoff import RetryBudget, wait_for_event
from deadletter.workers.exit_status import NEEDS_INTERVENTION, TRY_AGAIN, ExitStatus, status_of_broker_error
from deadletter.workers.rate_limit import InFlightLimit, TokenBucket
from deadletter.workers.replay.context import MatchQuota, ReplayContext, build_selection
from deadletter.workers.replay.explicit_ids import PreviewNotFound, explicit_offsets
from deadletter.workers.replay.meter import meter_of
from deadletter.workers.replay.publication import PublicationBuilder
from deadletter.workers.replay.run import STOP_REQUESTED, ReplayRun
from deadletter.workers.replay.session import PartitionSession, ReadOnlySession, WritingSession
from deadletter.workers.replay.sinks import Carrier, Undelivered


async def _settled(broker: Broker, boxes: Boxes) -> Mapping[int, Offsets]:
    try:
        return await broker.settled_offsets(boxes.dead, boxes.ledger)
    except NotAuthorised:
        return {}  # Kafka does not tell who may only read the dead box that there is no ledger


async def _seats(
    assignment: ReplayAssignment, broker: Broker, window: tuple[Span, ...], archived: bool
) -> list[PartitionSession]:
    boxes = assignment.boxes
    if assignment.observe:
        settled = await _settled(broker, boxes)
        return [ReadOnlySession(span.partition, settled.get(span.partition)) for span in window]
    uid, meter = assignment.uid, meter_of(assignment)
    return [WritingSession(broker, boxes.dead, boxes.ledger, span.partition, uid, archived, meter) for span in window]


async def _errand(
    assignment: ReplayAssignment,
    broker: Broker,
    seats: list[PartitionSession],
    carrier: Carrier | None,
    rate: Callable[[], Rate | None],
    stop: asyncio.Event,
) -> ReplayContext:
    def now() -> Rate | None:
        return rate() or assignment.spec.rate

    def per_second() -> int | None:
        current = now()
        return None if current is None else current.per_second

    def in_flight() -> int | None:
        current = now()
        return None if current is None else current.max_in_flight

    selection = build_selection(assignment)
    if selection.where:
        _ = selection.predicate  # an expression that does not compile is known before anything is done
    return ReplayContext(
        assignment=assignment,
        broker=broker,
        selection=selection,
        builder=PublicationBuilder(assignment, broker, now_ms),
        tokens=TokenBucket(per_second, stop),
        in_flight_limit=InFlightLimit(in_flight),
        current_rate=now,
        carrier=carrier,
        quota=MatchQuota(seats, selection.limit),
        explicit_offsets=await explicit_offsets(assignment, broker, [seat.partition for seat in seats]),
        clock=now_ms,
        stop=stop,
    )


async def run_replay(
    assignment: ReplayAssignment,
    broker: Broker,
    stop: asyncio.Event,
    carrier: Carrier | None = None,
    rate: Callable[[], Rate | None] = lambda: None,
) -> ExitStatus:
    """Do what the assignment says, or go on with it; every end is a value."""
    try:
        begun = await _begun(assignment, broker, stop, carrier, rate)
        return STOP_REQUESTED if begun is None else await begun[0].run(begun[1])
    except PredicateError as error:
        return ExitStatus(NEEDS_INTERVENTION, Reason.InvalidSpec, f"select.where: {error}")
    except PreviewNotFound as error:
        return ExitStatus(NEEDS_INTERVENTION, Reason.ReplayNotFound, str(error))
    except Undelivered as error:
        return ExitStatus(TRY_AGAIN, Reason.DeliveryFailed, str(error))
    except BrokerError as error:
        return status_of_broker_error(error)


async def _begun(
    assignment: ReplayAssignment,
    broker: Broker,
    stop: asyncio.Event,
    carrier: Carrier | None,
    rate: Callable[[], Rate | None],
) -> tuple[ReplayRun, tuple[Span, ...]] | None:
    """The course and its window, as soon as the broker answers; None: the stop came first."""
    archived = assignment.spec.select.state == "Archived"
    patience = RetryBudget()
    while True:
        try:
            window = await broker.window(assignment.boxes.dead, archived)
            seats = await _seats(assignment, broker, window, archived)
            return ReplayRun(await _errand(assignment, broker, seats, carrier, rate, stop), seats), window
        except BrokerUnreachable as error:
            await wait_for_event(stop, patience.wait_after(error))
        if stop.is_set():
            return None
