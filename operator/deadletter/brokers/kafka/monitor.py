"""Count the open letters of many queues: a few requests per broker find what changed, and only that is read."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.kafka import reads, topics
from deadletter.brokers.kafka.client import KafkaClient
from deadletter.brokers.kafka.ledger import RECORDS_PER_POLL, ledger_partition, start_ledger_consumer
from deadletter.brokers.kafka.monitor_state import QueueState
from deadletter.brokers.kafka.offsets import EARLIEST, LATEST, list_offsets, list_offsets_until
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxStats

READ_BUDGET_S = 5.0  # of one sweep; the rest is read by the next one
LEADER_WAIT_S = 2.0  # of one sweep; a broker that stops hands its partitions over in less
MAX_WORK_S = 0.002  # without giving other tasks the event loop
Offsets = Mapping[str, Mapping[int, int | BrokerError]]  # topic -> partition -> offset
Spans = dict[TopicPartition, tuple[int, int]]


class YieldTimer:
    """Yield to the event loop when the current task has worked for long enough."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._deadline = self._clock() + MAX_WORK_S

    async def yield_if_due(self) -> None:
        """Yield if MAX_WORK_S has passed since the last time."""
        if self._clock() > self._deadline:
            await asyncio.sleep(0)
            self._deadline = self._clock() + MAX_WORK_S


class KafkaMonitor:
    """Implement `BoxMonitor` with one consumer for all queues of a cluster."""

    def __init__(self, kafka: KafkaClient) -> None:
        self._kafka = kafka
        self._states: dict[str, QueueState] = {}  # by dead topic
        self._consumer: AIOKafkaConsumer | None = None

    async def close(self) -> None:
        """Stop the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """Return the statistics of each dead topic, or its error."""
        if not boxes:  # send nothing: the connection may be one that never worked
            self._states = {}
            return {}
        counts = await self._kafka.partition_counts_or_errors([topic for box in boxes for topic in _topics_of(box)])
        found: dict[str, BoxStats | BrokerError] = {}
        for box in boxes:
            count = counts.get(box.dead, BoxMissing(f"topic {box.dead} does not exist"))
            if isinstance(count, BrokerError):
                found[box.dead] = count
        await self._update_states([box for box in boxes if box.dead not in found])
        partitions = {
            topic: range(count) for state in self._states.values() for topic in _topics_of(state.box)
            if isinstance(count := counts.get(topic, 0), int)
        }  # fmt: skip
        clock = asyncio.get_running_loop().time
        deadline = clock() + LEADER_WAIT_S
        starts = await self._list_offsets(partitions, EARLIEST, deadline)
        ends = await self._list_offsets(partitions, LATEST, deadline)
        deadline = clock() + READ_BUDGET_S
        for kind in ("ledger", "retry", "dead"):
            await self._read_changes(kind, starts, ends, found, deadline)
        timer = YieldTimer()
        for dead, state in self._states.items():
            if dead not in found:
                found[dead] = self._stats_of(state, starts, ends, now)
                await timer.yield_if_due()
        await self._record_ledger_ends()
        return found

    async def _record_ledger_ends(self) -> None:
        """Record where the ledgers of missing letters end, open transactions included."""
        wanted: dict[TopicPartition, list[tuple[QueueState, int]]] = {}
        for state in self._states.values():
            for partition in state.parked.unproven_partitions():
                ledger = TopicPartition(state.box.ledger, ledger_partition(partition))
                wanted.setdefault(ledger, []).append((state, partition))
        if not wanted:
            return
        for ledger, end in (await list_offsets(self._kafka, dict.fromkeys(wanted, LATEST))).items():
            for state, partition in wanted[ledger]:
                if isinstance(end, int):  # otherwise the next sweep asks again
                    state.parked.ledger_ends[partition] = end

    async def _update_states(self, boxes: Sequence[MonitoredBox]) -> None:
        """Keep the state of each queue that is still monitored in the same way, and start the others from nothing."""
        kept = {box.dead: self._states.get(box.dead) for box in boxes}
        new = [box for box in boxes if (state := kept[box.dead]) is None or state.box != box]
        topic_states = await topics.describe_topics(self._kafka, [box.dead for box in new]) if new else {}
        for box in new:
            kept[box.dead] = QueueState(box, box.dead in topic_states and topic_states[box.dead].compacted)
        self._states = {dead: state for dead, state in kept.items() if state is not None}

    async def _list_offsets(self, partitions: Mapping[str, Iterable[int]], time: int, deadline: float) -> Offsets:
        times = {TopicPartition(topic, p): time for topic, numbers in partitions.items() for p in numbers}
        offsets = await list_offsets_until(self._kafka, times, deadline, read_committed=True)
        found: dict[str, dict[int, int | BrokerError]] = {}
        for tp, offset in offsets.items():
            found.setdefault(tp.topic, {})[tp.partition] = offset
        return found

    async def _read_changes(
        self, kind: str, starts: Offsets, ends: Offsets, found: dict[str, BoxStats | BrokerError], deadline: float
    ) -> None:
        """Read what is new in the ledger, retry or dead topics: all together, or one by one if that fails."""
        changed: dict[str, Spans] = {}
        timer = YieldTimer()
        for dead, state in self._states.items():
            if dead not in found and (spans := _unread_spans(state, getattr(state.box, kind), starts, ends)):
                changed[dead] = spans
            await timer.yield_if_due()
        try:
            await self._read(changed, deadline)
        except BrokerError:
            await self.close()
            for dead in changed:
                try:
                    state = self._states[dead]
                    unread = _unread_spans(state, getattr(state.box, kind), starts, ends)
                    await self._read({dead: unread}, deadline)
                except BrokerError as error:
                    found[dead] = error
                    await self.close()

    async def _read(self, changed: Mapping[str, Spans], deadline: float) -> None:
        spans = {tp: span for some in changed.values() for tp, span in some.items()}
        if not spans:
            return
        if self._consumer is not None and not self._kafka.has_current_credentials(self._consumer):
            await self.close()
        if self._consumer is None:
            self._consumer = await start_ledger_consumer(self._kafka)
        timer = YieldTimer()
        states = {tp: self._states[dead] for dead, some in changed.items() for tp in some}
        async for records in reads.read_records(self._consumer, spans, RECORDS_PER_POLL):
            for tp, batch in records.items():
                for record in batch:
                    states[tp].add_record(record)
                    await timer.yield_if_due()
                states[tp].positions[tp] = batch[-1].offset + 1
            if asyncio.get_running_loop().time() > deadline:
                return
        for tp, (_, end) in spans.items():
            states[tp].positions[tp] = end

    def _stats_of(self, state: QueueState, starts: Offsets, ends: Offsets, now: int) -> BoxStats | BrokerError:
        caught_up = True
        state.parked.count_lost(state.ledger_position)
        for topic in _topics_of(state.box):
            for partition, start in starts.get(topic, {}).items():
                tp, end = TopicPartition(topic, partition), ends.get(topic, {}).get(partition, 0)
                if isinstance(start, BrokerError):
                    return start
                if isinstance(end, BrokerError):
                    return end
                state.drop_below(tp, start)
                caught_up = caught_up and state.positions.get(tp, -1) >= end
        try:
            state.check_marks(ends.get(state.box.dead, {}))
        except BrokerError as error:
            return error
        return state.take_stats(now, caught_up)


def _topics_of(box: MonitoredBox) -> tuple[str, ...]:
    return (box.dead, box.ledger, *((box.retry,) if box.retry else ()))


def _unread_spans(state: QueueState, topic: str | None, starts: Offsets, ends: Offsets) -> Spans:
    """Return the spans of a topic that were not read yet.

    A partition of the dead topic that ends below the position was created again, and is read from its start.
    """
    spans: Spans = {}
    for partition, end in ends.get(topic or "", {}).items():
        tp, start = TopicPartition(topic, partition), starts.get(topic or "", {}).get(partition)
        if not isinstance(end, int) or not isinstance(start, int):
            continue
        if state.positions.get(tp, 0) > end and topic == state.box.dead:
            state.restart(partition)
        known = state.positions.get(tp)
        position = state.first_offset_to_read(tp, start) if known is None else max(known, start)
        state.positions[tp] = position
        if position < end:
            spans[tp] = (position, end)
    return spans
