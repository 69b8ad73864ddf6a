"""Create, configure and delete the boxes of a queue; an error of the broker becomes a finding."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.contract import Broker
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
from deadletter.controller.reconcile.ownership_records import (
    owned_boxes_to_delete,
    record_ownership,
    track_created_boxes,
)
from deadletter.controller.state.broker_pool import PooledBroker, broker_identities, with_timeout
from deadletter.controller.state.observed_queues import BoxSurvey
from deadletter.core.box_types import BoxSpec
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.plan.desired_boxes import like_source, owned_boxes, plan_boxes
from deadletter.plan.findings import Finding
from deadletter.plan.managed_boxes import new_intents

log = structlog.stdlib.get_logger("boxes")
MAX_MESSAGE_CHARACTERS = 1024
MESSAGES = {
    Reason.BrokerUnreachable: "No broker answers at the addresses of the BrokerConnection. Check them and the network.",
    Reason.AuthenticationFailed: "The broker refuses the credentials. Check the keys of the Secret and the mechanism.",
}


def to_finding(error: BrokerError) -> Finding:
    """Return the finding for a broker's error; some have a message of their own, without details that change."""
    reason = Reason.__members__.get(type(error).__name__, Reason.BoxRefused)
    if isinstance(error, BoxConflict) and "partition" in str(error).lower():
        reason = Reason.PartitionShrinkRefused
    elif isinstance(error, BoxAppeared):
        reason = Reason.BoxConflict
    message = MESSAGES.get(reason) or str(error)[:MAX_MESSAGE_CHARACTERS] or reason.meaning
    return Finding(reason, message, error.is_transient, BOXES_READY)


def sweep_finding(context: OperatorContext, queue: DeadLetterQueue) -> Finding | None:
    """Return the error that the sweep got when it read the box; the box exists and cannot be used."""
    error = context.observed.read_errors.get((queue.namespace, queue.name))
    return to_finding(error) if error else None


async def ensure_boxes(
    context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection
) -> Finding | None:
    """Create and configure the queue's boxes; nothing is done if a recent survey found them as planned."""
    name, planned = (queue.namespace, queue.name), plan_boxes(queue, connection.spec)
    survey = context.observed.surveys.get(name)
    pooled = await context.pool.get_or_open(connection)
    if isinstance(pooled.last_error, BrokerUnreachable):  # only the connection's own pass probes it, not each queue
        return to_finding(pooled.last_error)
    is_fresh = survey is not None and time.monotonic() - survey.surveyed_at < context.settings.rejudge_seconds / 2
    if survey and survey.planned == planned and is_fresh and not pooled.last_error:
        return None
    # After a restart it is enough to describe the boxes. After a change, or after a long time, compare every config.
    compares_config = survey is not None or queue.status.observed_generation != queue.generation
    try:
        states = await _describe_boxes(pooled, queue)
        records = await record_ownership(context, queue, pooled.spec.is_redis, states)
        if isinstance(records, Finding):
            context.observed.surveys.pop(name, None)
            return records
        must_be_new = new_intents(queue.status.owned_boxes, records)
        with track_created_boxes(context, queue, planned, records, states):
            await _ensure_planned(pooled, queue, planned, states, compares_config, must_be_new)
        ledger_problem = await _match_ledger(pooled, queue) if compares_config else None
    except BrokerError as error:
        context.observed.surveys.pop(name, None)
        return to_finding(error)
    if still_exists(context, queue):
        context.observed.surveys[name] = BoxSurvey(planned, states, time.monotonic(), ledger_problem)
    return None


async def _match_ledger(pooled: PooledBroker, queue: DeadLetterQueue) -> str:
    names = queue.boxes(pooled.spec.is_redis)
    return await with_timeout(pooled.broker.match_ledger_replication(names.dead, names.ledger))


async def _describe_boxes(pooled: PooledBroker, queue: DeadLetterQueue) -> dict[str, BoxState]:
    """Describe the source and the boxes of the queue, and the ledger if it may own it; missing ones are left out."""
    names = queue.boxes(pooled.spec.is_redis)
    needed = [name for name in (names.source, names.dead, names.retry) if name]
    ledger = [name for name in owned_boxes(queue, pooled.spec.is_redis) if name not in needed]
    states, ledger_state = await asyncio.gather(
        pooled.describe(needed), _empty_if_unauthorised(pooled.describe(ledger))
    )
    return {**states, **ledger_state}


async def _empty_if_unauthorised(call: Awaitable[Mapping[str, BoxState]]) -> Mapping[str, BoxState]:
    """Return no states without rights on the ledger: a user that only reads needs none and cannot have created it."""
    try:
        return await call
    except NotAuthorised:
        return {}


async def _ensure_planned(
    pooled: PooledBroker,
    queue: DeadLetterQueue,
    planned: tuple[BoxSpec, ...],
    states: dict[str, BoxState],
    compares_config: bool,
    must_be_new: Collection[str],
) -> None:
    """Create or configure the boxes that differ from the plan, and add them to `states`.

    Raises BoxAppeared if a box named in `must_be_new` exists when it is created.
    """
    source = queue.spec.source.name if queue.spec.source else None
    for box in planned:
        if box.adopt and box.name not in states:
            raise BoxMissing(
                f"{box.name} does not exist on the broker, and an adopted box is never created. "
                "Create it, or set spec.dead.adopt to false in a new queue."
            )
        wanted, found = box, states.get(source) if source else None
        if found is not None:
            wanted = like_source(box, found.partitions, found.max_message_bytes, exists=box.name in states)
        if not box.adopt and (_needs_change(wanted, states.get(box.name)) or compares_config):
            wanted = replace(wanted, must_be_new=box.name in must_be_new)
            states[box.name] = await _ensure_box(pooled.broker, wanted, exists=box.name in states)
    if source and source not in states and not pooled.spec.is_redis:
        raise BoxMissing(f"{source} does not exist on the broker; create the source first")


async def _ensure_box(broker: Broker, wanted: BoxSpec, *, exists: bool) -> BoxState:
    """Create or configure a box; one that exists keeps its limit for messages if the broker refuses a larger one."""
    try:
        return await with_timeout(broker.ensure(wanted))
    except BoxConflict as error:
        if not exists or wanted.min_message_bytes is None:
            raise
        log.warning("max.message.bytes not raised", box=wanted.name, bytes=wanted.min_message_bytes, error=str(error))
        return await with_timeout(broker.ensure(replace(wanted, min_message_bytes=None)))


def _needs_change(box: BoxSpec, state: BoxState | None) -> bool:
    if state is None:
        return True
    has_other_partitions = box.partitions is not None and state.partitions != box.partitions and not box.is_retry_box
    has_other_retention = (
        box.retention_ms is not None and state.retention_ms is not None and state.retention_ms != box.retention_ms
    )
    is_too_small = (state.max_message_bytes or 0) < (box.min_message_bytes or 0)
    return has_other_partitions or has_other_retention or is_too_small


async def probe_conflicting_brokers(
    context: OperatorContext, queue: DeadLetterQueue, is_redis: bool
) -> list[BrokerConnection]:
    """Identify the brokers of older queues whose dead box has the same name: it may be the same broker."""
    connections = [one for body in older_queues(context, queue, is_redis) if (one := connection_of(context, body))]
    for connection in connections:
        for name in connection.spec.secret_names:
            await context.secrets.fact(connection.namespace, name)
        with suppress(BrokerError):  # then only the addresses are compared
            await context.pool.ensure_identified(connection)
    return connections


async def _belongs_to_older_queue(context: OperatorContext, queue: DeadLetterQueue, pooled: PooledBroker) -> bool:
    """True if an older queue has the same dead box, perhaps through another connection; then it must not be deleted."""
    connections = await probe_conflicting_brokers(context, queue, pooled.spec.is_redis)
    if connections and pooled.server is None:
        pooled.server = await with_timeout(pooled.broker.server_info())
    own_identities = broker_identities(pooled.spec, pooled.server)
    return any(own_identities & context.pool.identities_of(connection) for connection in connections)


async def delete_boxes(
    context: OperatorContext, queue: DeadLetterQueue, connection: BrokerConnection | None
) -> Finding | None:
    """Delete the boxes that the queue owns; through the open broker if the connection was deleted already."""
    name = queue.spec.broker_ref.name
    try:
        pooled = await context.pool.get_or_open(connection) if connection else context.pool.get(queue.namespace, name)
        if pooled is None:
            message = f"BrokerConnection {name} does not exist, so the boxes cannot be deleted. Create it again."
            return Finding(Reason.DeletionBlocked, message, True, BOXES_READY)
        if connection is not None and isinstance(pooled.last_error, BrokerUnreachable):
            raise pooled.last_error
        if await _belongs_to_older_queue(context, queue, pooled):
            return None
        names = owned_boxes_to_delete(queue, pooled.spec.is_redis, await _describe_boxes(pooled, queue))
        if isinstance(names, Finding):
            return names
        await with_timeout(pooled.broker.delete(names))
    except BrokerError as error:
        return replace(to_finding(error), reason=Reason.DeletionBlocked, is_transient=True)
    return None
