"""The consumer group of a queue's courier: whether it has started."""

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core import times
from deadletter.plan.facts import QueueFacts


def consumer_group_status(queue: DeadLetterQueue, facts: QueueFacts) -> dict[str, str] | None:
    """Return the started group as the status shows it; None if no courier has worked with it yet.

    A courier writes its heartbeat only after the group has an offset of every partition, so one heartbeat is proof.
    """
    source = queue.spec.source
    if source is None or queue.spec.delivery is None:
        return None
    known = queue.status.consumer_group
    if known is not None and (known.name, known.source) == (source.group, source.name):
        return {"name": known.name, "source": known.source, "startedTime": known.started_time}
    if facts.stats is None or not facts.stats.couriers:
        return None
    return {"name": source.group, "source": source.name, "startedTime": times.render(facts.now // 1000 * 1000)}
