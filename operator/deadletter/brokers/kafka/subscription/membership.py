"""Is a partition still ours? What we remember may be old; the group knows.

Transactions of this driver carry no generation of the group, so a courier that was thrown out could open a partition's
transactional id once more and fence the one that has it now. Whoever opens an id asks the group first.
"""

from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.errors import Fenced
from deadletter.brokers.kafka.errors import translated

HEARTBEAT_MS = 1_000


def is_assigned(consumer: AIOKafkaConsumer, tp: TopicPartition) -> bool:
    """As far as we were told."""
    return tp in consumer.assignment()


async def confirm_assignment(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    """The group says so now; Fenced if it does not."""
    with translated(tp.topic):
        is_member = await consumer._coordinator._do_heartbeat()  # noqa: SLF001  (aiokafka has no other way to ask)
    if not is_member or not is_assigned(consumer, tp):
        raise Fenced(f"{tp.topic}: the partition went to another courier")
