"""A Replay on an open broker: everything a course needs is brought together here."""

import asyncio
import time
from collections.abc import Callable, Mapping

from deadletter.api.assignments import Boxes, ReplayAssignment
from deadletter.api.replays import Rate
from deadletter.brokers.contract import Broker, Offsets
from deadletter.brokers.errors import BrokerError, BrokerUnreachable, NotAuthorised
from deadletter.core.reasons import Reason
from deadletter.core.replay_progress import Span
from deadletter.core.selection import PredicateError
from deadletter.workers.backoff import Patience, rest
from deadletter.workers.exit_status import HUMAN, TRY_AGAIN, Ending, of_broker
from deadletter.workers.rate_limit import Flight, Pace
from deadletter.workers.replay.context import Errand, Quota, selection_of
from deadletter.workers.replay.explicit_ids import PreviewGone, names
from deadletter.workers.replay.meter import meter_of
from deadletter.workers.replay.publication import Drafter
from deadletter.workers.replay.run import STOPPING, Course
from deadletter.workers.replay.session import MoverSeat, ObserverSeat, Seat
from deadletter.workers.replay.sinks import Carrier, Undelivered


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def _settled(broker: Broker, boxes: Boxes) -> Mapping[int, Offsets]:
    try:
        return await broker.settled(boxes.dead, boxes.ledger)
    except NotAuthorised:
        return {}  # Kafka does not tell who may only read the dead box that there is no ledger


async def _seats(assignment: ReplayAssignment, broker: Broker, window: tuple[Span, ...], archived: bool) -> list[Seat]:
    boxes = assignment.boxes
    if assignment.observe:
        settled = await _settled(broker, boxes)
        return [ObserverSeat(span.partition, settled.get(span.partition)) for span in window]
    uid, meter = assignment.uid, meter_of(assignment)
    return [MoverSeat(broker, boxes.dead, boxes.ledger, span.partition, uid, archived, meter) for span in window]


async def _errand(
    assignment: ReplayAssignment,
    broker: Broker,
    seats: list[Seat],
    carrier: Carrier | None,
    rate: Callable[[], Rate | None],
    stop: asyncio.Event,
) -> Errand:
    def now() -> Rate | None:
        return rate() or assignment.spec.rate

    def per_second() -> int | None:
        current = now()
        return None if current is None else current.per_second

    def in_flight() -> int | None:
        current = now()
        return None if current is None else current.max_in_flight

    selection = selection_of(assignment)
    if selection.where:
        _ = selection.predicate  # an expression that does not compile is known before anything is done
    return Errand(
        assignment=assignment,
        broker=broker,
        selection=selection,
        drafter=Drafter(assignment, broker, wall_clock),
        pace=Pace(per_second, stop),
        flight=Flight(in_flight),
        rate=now,
        carrier=carrier,
        quota=Quota(seats, selection.limit),
        named=await names(assignment, broker, [seat.partition for seat in seats]),
        clock=wall_clock,
        stop=stop,
    )


async def replay(
    assignment: ReplayAssignment,
    broker: Broker,
    stop: asyncio.Event,
    carrier: Carrier | None = None,
    rate: Callable[[], Rate | None] = lambda: None,
) -> Ending:
    """Do what the assignment says, or go on with it; every end is a value."""
    try:
        begun = await _begun(assignment, broker, stop, carrier, rate)
        return STOPPING if begun is None else await begun[0].run(begun[1])
    except PredicateError as error:
        return Ending(HUMAN, Reason.InvalidSpec, f"select.where: {error}")
    except PreviewGone as error:
        return Ending(HUMAN, Reason.ReplayNotFound, str(error))
    except Undelivered as error:
        return Ending(TRY_AGAIN, Reason.DeliveryFailed, str(error))
    except BrokerError as error:
        return of_broker(error)


async def _begun(
    assignment: ReplayAssignment,
    broker: Broker,
    stop: asyncio.Event,
    carrier: Carrier | None,
    rate: Callable[[], Rate | None],
) -> tuple[Course, tuple[Span, ...]] | None:
    """The course and its window, as soon as the broker answers; None: the stop came first."""
    archived = assignment.spec.select.state == "Archived"
    patience = Patience()
    while True:
        try:
            window = await broker.window(assignment.boxes.dead, archived)
            seats = await _seats(assignment, broker, window, archived)
            return Course(await _errand(assignment, broker, seats, carrier, rate, stop), seats), window
        except BrokerUnreachable as error:
            await rest(stop, patience.wait_after(error))
        if stop.is_set():
            return None
