"""Boxes: look, make, bring back, drop; what a broker objects to becomes a finding."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.errors import (
    BoxAppeared,
    BoxConflict,
    BoxMissing,
    BrokerError,
    BrokerUnreachable,
    NotAuthorised,
)
from deadletter.brokers.types import BoxSpec, BoxState
from deadletter.controller.context import Operation, Survey
from deadletter.controller.reconcile.facts import broker_of, is_current, older
from deadletter.controller.reconcile.ownership import boxes_to_drop, claim_boxes, recording
from deadletter.controller.state.broker_pool import Line, identities, within
from deadletter.core.reasons import Reason
from deadletter.plan.boxes import PlannedBox, owned_boxes, plan_boxes
from deadletter.plan.findings import BOXES, Finding
from deadletter.plan.ownership import new_intents

SENTENCES = {
    Reason.BrokerUnreachable: "Nobody answers at the broker's addresses.",
    Reason.AuthenticationFailed: "The broker refuses the credentials; look at the Secret's keys and at the mechanism.",
}


def finding(error: BrokerError) -> Finding:
    """A broker's objection in our words; of an unreachable broker only that it is."""
    name = type(error).__name__
    reason = Reason.__members__.get(name, Reason.BoxRefused)
    if isinstance(error, BoxConflict) and "partition" in str(error).lower():
        reason = Reason.PartitionShrinkRefused
    elif isinstance(error, BoxAppeared):
        reason = Reason.BoxConflict
    return Finding(reason, SENTENCES.get(reason) or str(error)[:1024] or reason.meaning, error.is_transient, BOXES)


def objection(operation: Operation, queue: DeadLetterQueue) -> Finding | None:
    """What the sweep found and a look from outside cannot see: such a box is there, and not to be used."""
    error = operation.objections.get((queue.namespace, queue.name))
    return finding(error) if error else None


async def bring_about(operation: Operation, queue: DeadLetterQueue, connection: BrokerConnection) -> Finding | None:
    """Every box of the queue is there as asked. What was seen a moment ago is believed."""
    key, planned = (queue.namespace, queue.name), plan_boxes(queue, connection.spec)
    known = operation.surveys.get(key)
    line = await operation.pool.line(connection)
    if isinstance(line.trouble, BrokerUnreachable):  # its connection's pass asks again; a thousand queues need not
        return finding(line.trouble)
    fresh = known is not None and time.monotonic() - known.at < operation.settings.rejudge_seconds / 2
    if known and known.planned == planned and fresh and not line.trouble:
        return None
    # After a restart a look is enough; what changed, or was not looked at for long, is compared config by config.
    thorough = known is not None or queue.status.observed_generation != queue.generation
    try:
        states = await _described(line, queue)
        records = await claim_boxes(operation, queue, line.spec.is_redis, states)
        if isinstance(records, Finding):
            operation.surveys.pop(key, None)
            return records
        new = new_intents(queue.status.owned_boxes, records)
        with recording(operation, queue, planned, records, states):
            await _survey(line, queue, planned, states, thorough, new)
        names = queue.boxes(connection.spec.is_redis)
        lacks = await within(line.broker.match_ledger_replication(names.dead, names.ledger)) if thorough else None
    except BrokerError as error:
        operation.surveys.pop(key, None)
        return finding(error)
    if is_current(operation, queue):
        operation.surveys[key] = Survey(planned, states, time.monotonic(), lacks)
    return None


async def _described(line: Line, queue: DeadLetterQueue) -> dict[str, BoxState]:
    """The source and the boxes of the queue that exist; the ledger where the queue may own one."""
    names = queue.boxes(line.spec.is_redis)
    needed = [name for name in (names.source, names.dead, names.retry) if name]
    ledger = [name for name in owned_boxes(queue, line.spec.is_redis) if name not in needed]
    states, more = await asyncio.gather(line.describe(needed), _if_allowed(line.describe(ledger)))
    return {**states, **more}


async def _if_allowed(asking: Awaitable[Mapping[str, BoxState]]) -> Mapping[str, BoxState]:
    """No rights on the ledger: a user that only looks needs none, and could not have created it."""
    try:
        return await asking
    except NotAuthorised:
        return {}


async def _survey(
    line: Line,
    queue: DeadLetterQueue,
    planned: tuple[PlannedBox, ...],
    states: dict[str, BoxState],
    thorough: bool,
    new: Collection[str],
) -> None:
    """Create or configure what differs; `states` has then every box as it is. `new`: boxes that must not exist."""
    source = queue.spec.source.name if queue.spec.source else None
    for box in planned:
        if box.adopt and box.name not in states:
            raise BoxMissing(f"{box.name} does not exist on the broker; an adopted box is never created")
        if not box.adopt and (_differs(box, states.get(box.name)) or thorough):
            spec = replace(_fitting(box, source, states), must_be_new=box.name in new)
            states[box.name] = await within(line.broker.ensure(spec))
    if source and source not in states and not line.spec.is_redis:
        raise BoxMissing(f"{source} does not exist on the broker; create the source first")


def _differs(box: PlannedBox, state: BoxState | None) -> bool:
    if state is None:
        return True
    grown = box.partitions is not None and state.partitions != box.partitions and not box.parking
    kept = box.retention_ms is not None and state.retention_ms is not None and state.retention_ms != box.retention_ms
    return grown or kept


def _fitting(box: PlannedBox, source: str | None, states: dict[str, BoxState]) -> BoxSpec:
    """Partitions that nobody asked for follow the source's, and an existing box keeps its own."""
    partitions = box.partitions
    if partitions is None and box.name not in states and source in states:
        partitions = states[source].partitions
    return BoxSpec(**asdict(replace(box, partitions=partitions)))


async def meet_rivals(operation: Operation, queue: DeadLetterQueue, redis: bool) -> list[BrokerConnection]:
    """The brokers of older queues whose dead box has the same name, asked who they are: it may be the same one."""
    rivals = [one for body in older(operation, queue, redis) if (one := broker_of(operation, body))]
    for connection in rivals:
        for name in connection.spec.secret_names:
            await operation.secrets.fact(connection.namespace, name)
        with suppress(BrokerError):  # then it is told by where it is
            await operation.pool.meet(connection)
    return rivals


async def _is_anothers(operation: Operation, queue: DeadLetterQueue, line: Line) -> bool:
    """Does an older queue have the same dead box, by another connection perhaps? Then it is not ours to delete."""
    rivals = await meet_rivals(operation, queue, line.spec.is_redis)
    if rivals and line.server is None:
        line.server = await within(line.broker.server_info())
    mine = identities(line.spec, line.server)
    return any(mine & operation.pool.identities(one) for one in rivals)


async def drop(operation: Operation, queue: DeadLetterQueue, connection: BrokerConnection | None) -> Finding | None:
    """Delete what `deletionPolicy: Delete` gives us to delete; by the open line when its connection is gone."""
    broker = queue.spec.broker_ref.name
    try:
        line = await operation.pool.line(connection) if connection else operation.pool.known(queue.namespace, broker)
        if line is None:
            sentence = f"BrokerConnection {broker} is gone, so its boxes cannot be deleted."
            return Finding(Reason.DeletionBlocked, sentence, True, BOXES)
        if connection is not None and isinstance(line.trouble, BrokerUnreachable):
            raise line.trouble
        if await _is_anothers(operation, queue, line):
            return None
        names = boxes_to_drop(queue, line.spec.is_redis, await _described(line, queue))
        if isinstance(names, Finding):
            return names
        await within(line.broker.delete(names))
    except BrokerError as error:
        found = finding(error)
        return replace(found, reason=Reason.DeletionBlocked, heals=True)
    return None
