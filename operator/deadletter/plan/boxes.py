"""The boxes that should exist for a queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deadletter.api.broker_connections import BoxDefaults, BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueue

FOR_EVER = -1
# Against defaults of the broker that delete by size (log.retention.bytes) or compact: only time deletes letters.
KEEP_ALL = {"cleanup.policy": "delete", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class PlannedBox:
    """One box as it should be; the fields are those of the broker contract."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    retention_ms: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    adopt: bool = False
    parking: bool = False


def plan_boxes(queue: DeadLetterQueue, broker: BrokerConnectionSpec) -> tuple[PlannedBox, ...]:
    """The source must exist; dead and retry boxes are made. The ledger is made by its first writer."""
    names = queue.boxes(broker.is_redis)
    dead = queue.spec.dead
    if dead.adopt:
        return (PlannedBox(names.dead, adopt=True),)
    usual = broker.kafka.defaults if broker.kafka else BoxDefaults()
    partitions = dead.partitions or usual.partitions
    copies = dead.replication_factor or usual.replication_factor
    # Retention counts from the burial, not from when the message was first sent.
    config = dict(usual.config) | dict(dead.config) | KEEP_ALL | {"message.timestamp.type": "LogAppendTime"}
    boxes = [PlannedBox(names.dead, partitions, copies, dead.retention_ms, {} if broker.is_redis else config)]
    if names.retry:
        config = {} if broker.is_redis else dict(usual.config) | KEEP_ALL
        boxes.append(PlannedBox(names.retry, partitions, copies, FOR_EVER, config, parking=True))
    return tuple(boxes)


def owned_boxes(queue: DeadLetterQueue, redis: bool) -> tuple[str, ...]:
    """What `deletionPolicy: Delete` drops: never an adopted box, never a source."""
    if queue.spec.dead.adopt:
        return ()
    names = queue.boxes(redis)
    return tuple(name for name in (names.dead, names.retry, names.ledger) if name)
