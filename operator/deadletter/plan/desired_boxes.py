"""Plan which topics or streams a queue should have, from its spec and its source."""

from dataclasses import replace

from deadletter.api.broker_connections import BoxDefaults, BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core.box_types import BoxSpec

UNLIMITED_RETENTION_MS = -1
# The broker's own defaults may delete by size (log.retention.bytes) or compact. Here only age may delete letters.
DELETE_BY_AGE_ONLY = {"cleanup.policy": "delete", "retention.bytes": "-1"}
# With CreateTime a broker refuses a message whose time is more than message.timestamp.after.max.ms ahead (Kafka 4: 1h).
# In the dead box, retention then counts from the burial, not from the time when the message was first sent.
TIME_OF_APPEND = {"message.timestamp.type": "LogAppendTime"}
ENVELOPE_BYTES = 65_536  # our headers (below 8 KiB), the compatible ones (below 24 KiB) and renamed ones, with a margin
MAX_MESSAGE_BYTES = 2**31 - 1  # max.message.bytes is a 32-bit integer; some sources are set to its maximum


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
    config = dict(defaults.config) | dict(dead.config) | DELETE_BY_AGE_ONLY | TIME_OF_APPEND
    dead_config = {} if broker.is_redis else config
    boxes = [BoxSpec(names.dead, partitions, replication_factor, dead.retention_ms, dead_config)]
    if names.retry:
        retry_config = {} if broker.is_redis else dict(defaults.config) | DELETE_BY_AGE_ONLY | TIME_OF_APPEND
        boxes.append(
            BoxSpec(
                names.retry, partitions, replication_factor, UNLIMITED_RETENTION_MS, retry_config, is_retry_box=True
            )
        )
    return tuple(boxes)


def like_source(box: BoxSpec, partitions: int, max_message_bytes: int | None, exists: bool) -> BoxSpec:
    """Return the box with what it takes from its source, which has these limits, unless the spec sets it.

    A new box gets as many partitions; every box takes messages as large as those of the source, with their envelope.
    """
    if box.partitions is None and not exists:
        box = replace(box, partitions=partitions)
    if max_message_bytes is None or "max.message.bytes" in box.config:
        return box
    return replace(box, min_message_bytes=min(max_message_bytes + ENVELOPE_BYTES, MAX_MESSAGE_BYTES))


def owned_boxes(queue: DeadLetterQueue, redis: bool) -> tuple[str, ...]:
    """Return the boxes that `deletionPolicy: Delete` deletes: never an adopted box, never a source."""
    if queue.spec.dead.adopt:
        return ()
    names = queue.boxes(redis)
    return tuple(name for name in (names.dead, names.retry, names.ledger) if name)
