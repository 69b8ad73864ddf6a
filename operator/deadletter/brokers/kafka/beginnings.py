"""Where a new group begins: at the end of its source, in every partition, said once before anybody works.

So a partition without an offset of the group is one that was added later, and all of its messages are new.
"""

from aiokafka import TopicPartition

from deadletter.brokers.errors import Fenced
from deadletter.brokers.kafka.errors import translated
from deadletter.brokers.kafka.line import Line


async def begin_at_the_end(line: Line, group: str, source: str) -> None:
    """Unless the group knows its source already, or somebody of it is at work and has said it."""
    tps = [TopicPartition(source, number) for number in range(await line.partitions(source))]
    ends = await line.ends(source, [tp.partition for tp in tps])
    consumer = await line.consumer(group_id=group)
    try:
        consumer.assign(tps)
        with translated(group):
            for tp in tps:
                if await consumer.committed(tp) is not None:
                    return
            await consumer.commit({tp: (ends[tp.partition], "") for tp in tps})
    except Fenced:
        return
    finally:
        await consumer.stop()
