"""Boxes: look, make, bring back, drop; what a broker objects to becomes a finding."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

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
from deadletter.brokers.types import BoxState
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.facts import connection_of, older_queues, still_exists
from deadletter.controller.reconcile.ownership import boxes_to_drop, record_ownership, track_created_boxes
from deadletter.controller.state.broker_pool import PooledBroker, broker_identities, with_timeout
from deadletter.core.box_spec import BoxSpec
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.plan.boxes import owned_boxes, plan_boxes
from deadletter.plan.findings import Finding
from deadletter.plan.ownership import new_intents

MESSAGES = {
    Reason.BrokerUnreachable: "Nobody answers at the broker's addresses.",
    Reason.AuthenticationFailed: "The broker refuses the credentials; look at the Secret's keys and at the mechanism.",
}


def to_finding(error: BrokerError) -> Finding:
    """A broker's objection in our words; of an unreachable broker only that it is."""
    name = type(error).__name__
    reason = Reason.__members__.get(name, Reason.BoxRefused)
    if isinstance(error, BoxConflict) and "partition" in str(error).lower():
        reason = Reason.PartitionShrinkRefused
    elif isinstance(error, BoxAppeared):
        reason = Reason.BoxConflict
    return Finding(reason, MESSAGES.get(reason) or str(error)[:1024] or reason.meaning, error.is_transient, BOXES_READY)


def sweep_finding(context: OperatorContext, queue: DeadLetterQueue) -> Finding | None:
    """What the sweep found and a look from outside cannot see: such a box is there, and not to be used."""
    error = context.observed.read_errors.get((queue.namespace, queue.name))
    return to_finding(error) if error else None


async def ensure_boxes(
    context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection
) -> Finding | None:
    """Every box of the queue is there as asked. What was seen a moment ago is believed."""
    key, planned = (queue.namespace, queue.name), plan_boxes(queue, connection.spec)
    known = context.observed.surveys.get(key)
    pooled = await context.pool.get_or_open(connection)
    if isinstance(pooled.last_error, BrokerUnreachable):  # its connection's pass asks again; a thousand queues need not
        return to_finding(pooled.last_error)
    fresh = known is not None and time.monotonic() - known.surveyed_at < context.settings.rejudge_seconds / 2
    if known and known.planned == planned and fresh and not pooled.last_error:
        return None
    # After a restart a look is enough; what changed, or was not looked at for long, is compared config by config.
    thorough = known is not None or queue.status.observed_generation != queue.generation
    try:
        states = await _describe_boxes(pooled, queue)
        records = await record_ownership(context, queue, pooled.spec.is_redis, states)
        if isinstance(records, Finding):
            context.observed.surveys.pop(key, None)
            return records
        new = new_intents(queue.status.owned_boxes, records)
        with track_created_boxes(context, queue, planned, records, states):
            await _ensure_planned(pooled, queue, planned, states, thorough, new)
        names = queue.boxes(connection.spec.is_redis)
        lacks = await with_timeout(pooled.broker.match_ledger_replication(names.dead, names.ledger)) if thorough else None
    except BrokerError as error:
        context.observed.surveys.pop(key, None)
        return to_finding(error)
    if still_exists(context, queue):
        context.observed.surveys[key] = BoxSurvey(planned, states, time.monotonic(), lacks)
    return None


async def _describe_boxes(pooled: PooledBroker, queue: DeadLetterQueue) -> dict[str, BoxState]:
    """The source and the boxes of the queue that exist; the ledger where the queue may own one."""
    names = queue.boxes(pooled.spec.is_redis)
    needed = [name for name in (names.source, names.dead, names.retry) if name]
    ledger = [name for name in owned_boxes(queue, pooled.spec.is_redis) if name not in needed]
    states, more = await asyncio.gather(pooled.describe(needed), _empty_if_unauthorised(pooled.describe(ledger)))
    return {**states, **more}


async def _empty_if_unauthorised(asking: Awaitable[Mapping[str, BoxState]]) -> Mapping[str, BoxState]:
    """No rights on the ledger: a user that only looks needs none, and could not have created it."""
    try:
        return await asking
    except NotAuthorised:
        return {}


async def _ensure_planned(
    pooled: PooledBroker,
    queue: DeadLetterQueue,
    planned: tuple[BoxSpec, ...],
    states: dict[str, BoxState],
    thorough: bool,
    new: Collection[str],
) -> None:
    """Create or configure what differs; `states` has then every box as it is. `new`: boxes that must not exist."""
    source = queue.spec.source.name if queue.spec.source else None
    for box in planned:
        if box.adopt and box.name not in states:
            raise BoxMissing(f"{box.name} does not exist on the broker; an adopted box is never created")
        if not box.adopt and (_needs_change(box, states.get(box.name)) or thorough):
            spec = replace(_box_spec(box, source, states), must_be_new=box.name in new)
            states[box.name] = await with_timeout(pooled.broker.ensure(spec))
    if source and source not in states and not pooled.spec.is_redis:
        raise BoxMissing(f"{source} does not exist on the broker; create the source first")


def _needs_change(box: BoxSpec, state: BoxState | None) -> bool:
    if state is None:
        return True
    grown = box.partitions is not None and state.partitions != box.partitions and not box.is_retry_box
    kept = box.retention_ms is not None and state.retention_ms is not None and state.retention_ms != box.retention_ms
    return grown or kept


def _box_spec(box: BoxSpec, source: str | None, states: dict[str, BoxState]) -> BoxSpec:
    """Partitions that nobody asked for follow the source's, and an existing box keeps its own."""
    partitions = box.partitions
    if partitions is None and box.name not in states and source in states:
        partitions = states[source].partitions
    return replace(box, partitions=partitions)


async def probe_conflicting_brokers(
    context: OperatorContext, queue: DeadLetterQueue, redis: bool
) -> list[BrokerConnection]:
    """The brokers of older queues whose dead box has the same name, asked who they are: it may be the same one."""
    rivals = [one for body in older_queues(context, queue, redis) if (one := connection_of(context, body))]
    for connection in rivals:
        for name in connection.spec.secret_names:
            await context.secrets.fact(connection.namespace, name)
        with suppress(BrokerError):  # then it is told by where it is
            await context.pool.ensure_identified(connection)
    return rivals


async def _belongs_to_older_queue(context: OperatorContext, queue: DeadLetterQueue, pooled: PooledBroker) -> bool:
    """Does an older queue have the same dead box, by another connection perhaps? Then it is not ours to delete."""
    rivals = await probe_conflicting_brokers(context, queue, pooled.spec.is_redis)
    if rivals and pooled.server is None:
        pooled.server = await with_timeout(pooled.broker.server_info())
    mine = broker_identities(pooled.spec, pooled.server)
    return any(mine & context.pool.identities_of(one) for one in rivals)


async def drop_boxes(
    context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection | None
) -> Finding | None:
    """Delete what `deletionPolicy: Delete` gives us to delete; by the open pooled when its connection is gone."""
    broker = queue.spec.broker_ref.name
    try:
        pooled = (
            await context.pool.get_or_open(connection) if connection else context.pool.get(queue.namespace, broker)
        )
        if pooled is None:
            sentence = f"BrokerConnection {broker} is gone, so its boxes cannot be deleted."
            return Finding(Reason.DeletionBlocked, sentence, True, BOXES_READY)
        if connection is not None and isinstance(pooled.last_error, BrokerUnreachable):
            raise pooled.last_error
        if await _belongs_to_older_queue(context, queue, pooled):
            return None
        names = boxes_to_drop(queue, pooled.spec.is_redis, await _describe_boxes(pooled, queue))
        if isinstance(names, Finding):
            return names
        await with_timeout(pooled.broker.delete(names))
    except BrokerError as error:
        found = to_finding(error)
        return replace(found, reason=Reason.DeletionBlocked, is_transient=True)
    return None
