"""Plan which topics or streams a queue should have, from its spec alone."""

from deadletter.api.broker_connections import BoxDefaults, BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core.box_types import BoxSpec

UNLIMITED_RETENTION_MS = -1
# The broker's own defaults may delete by size (log.retention.bytes) or compact. Here only age may delete letters.
DELETE_BY_AGE_ONLY = {"cleanup.policy": "delete", "retention.bytes": "-1"}


def plan_boxes(queue: DeadLetterQueue, broker: BrokerConnectionSpec) -> tuple[BoxSpec, ...]:
    """Return the dead box and the retry box to create or adopt.

    The source must exist already. The ledger is created by the first worker that writes to it.
    """
    names = queue.boxes(broker.is_redis)
    dead = queue.spec.dead
    if dead.adopt:
        return (BoxSpec(names.dead, adopt=True),)
    defaults = broker.kafka.defaults if broker.kafka else BoxDefaults()
    partitions = dead.partitions or defaults.partitions
    replication_factor = dead.replication_factor or defaults.replication_factor
    # LogAppendTime: retention counts from the burial, not from the time when the message was first sent.
    config = (
        dict(defaults.config) | dict(dead.config) | DELETE_BY_AGE_ONLY | {"message.timestamp.type": "LogAppendTime"}
    )
    dead_config = {} if broker.is_redis else config
    boxes = [BoxSpec(names.dead, partitions, replication_factor, dead.retention_ms, dead_config)]
    if names.retry:
        retry_config = {} if broker.is_redis else dict(defaults.config) | DELETE_BY_AGE_ONLY
        boxes.append(
            BoxSpec(
                names.retry, partitions, replication_factor, UNLIMITED_RETENTION_MS, retry_config, is_retry_box=True
            )
        )
    return tuple(boxes)


def owned_boxes(queue: DeadLetterQueue, redis: bool) -> tuple[str, ...]:
    """Return the boxes that `deletionPolicy: Delete` deletes: never an adopted box, never a source."""
    if queue.spec.dead.adopt:
        return ()
    names = queue.boxes(redis)
    return tuple(name for name in (names.dead, names.retry, names.ledger) if name)
