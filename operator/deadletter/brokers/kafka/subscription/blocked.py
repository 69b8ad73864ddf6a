"""Keep and log the reasons why assigned partitions cannot be opened or read."""

import structlog
from aiokafka import TopicPartition

from deadletter.brokers.errors import BrokerError

MAX_LOGGED_CHARACTERS = 1024
log = structlog.stdlib.get_logger("subscription")


class BlockedPartitions:
    """The partitions that are blocked, each with the error that blocks it; each change of reason is logged once."""

    def __init__(self) -> None:
        self._errors: dict[TopicPartition, BrokerError] = {}

    @property
    def first_error(self) -> BrokerError | None:
        """Return the error of the partition that is blocked the longest; None if none is blocked."""
        return next(iter(self._errors.values()), None)

    def of_topic(self, topic: str) -> list[TopicPartition]:
        """Return the blocked partitions of one topic."""
        return [tp for tp in self._errors if tp.topic == topic]

    def block(self, tp: TopicPartition, error: BrokerError) -> None:
        """Mark a partition as blocked by this error."""
        reason = type(error).__name__
        if type(self._errors.get(tp)).__name__ != reason:
            message = str(error)[:MAX_LOGGED_CHARACTERS]
            log.warning("partition blocked", topic=tp.topic, partition=tp.partition, reason=reason, message=message)
        self._errors[tp] = error

    def unblock(self, tp: TopicPartition) -> None:
        """Mark a partition as open."""
        if self._errors.pop(tp, None) is not None:
            log.info("partition unblocked", topic=tp.topic, partition=tp.partition)

    def clear(self) -> None:
        """Forget all partitions, because they are no longer assigned."""
        self._errors.clear()
