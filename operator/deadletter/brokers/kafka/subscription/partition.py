"""What source and retry partitions have in common: a transactional producer, a settlement writer, claims in flight."""

from abc import ABC, abstractmethod

from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.kafka import hanging_transactions
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.subscription import group_offsets
from deadletter.brokers.kafka.subscription.settlement_writer import SettlementWriter
from deadletter.brokers.kafka.transactions import TransactionalProducer
from deadletter.brokers.types import Claim, SubscriptionSpec


class AssignedPartition(ABC):
    """One assigned partition of a topic that the subscription reads."""

    settlement_writer: SettlementWriter

    def __init__(
        self,
        kafka: KafkaClient,
        consumer: AIOKafkaConsumer,
        spec: SubscriptionSpec,
        tp: TopicPartition,
        transactional_id: str,
    ) -> None:
        self._kafka, self._consumer, self._spec, self.tp = kafka, consumer, spec, tp
        self._transactional_id = transactional_id
        self._producer: TransactionalProducer | None = None
        self._claims: dict[int, Claim] = {}  # in flight, by offset
        self.position = 0  # offset to read next

    @property
    def is_assigned(self) -> bool:
        """True if the partition is assigned to this courier as far as it knows."""
        return group_offsets.is_assigned(self._consumer, self.tp)

    def is_held(self, claim: Claim) -> bool:
        """True if this very claim is in flight; a claim of an earlier assignment is not, even for the same message."""
        return self._claims.get(claim.place.offset) is claim

    @abstractmethod
    async def recover(self) -> None:
        """Fence writes that may still be under way, then replace the state in memory by what is durable."""

    async def _open_producer(self) -> tuple[TransactionalProducer, list[TopicPartition]]:
        """Fence every earlier producer of this partition; return the new one and the default targets of letters."""
        await self._close_producer()
        await group_offsets.confirm_assignment(self._consumer, self.tp)
        self._producer = await TransactionalProducer.open(self._kafka, self._transactional_id)
        targets = await hanging_transactions.default_targets(self._kafka, self._spec, self.tp.partition)
        return self._producer, targets

    async def _require_producer(self) -> TransactionalProducer:
        """Return the producer; recover first if there is none."""
        if self._producer is None:
            await self.recover()
        assert self._producer is not None  # noqa: S101  (recover opened it, or raised)
        return self._producer

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def close(self, flush: bool) -> None:
        """Stop the settlement writer, with `flush` after it has written what is pending, and close the producer."""
        await self.settlement_writer.close(flush)
        await self._close_producer()
