"""The registers of many queues: a few requests a broker find what moved, and only that is read."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from deadletter.brokers.errors import BoxMissing, BrokerError
from deadletter.brokers.kafka import reads, topics
from deadletter.brokers.kafka.client import EARLIEST, LATEST, KafkaClient
from deadletter.brokers.kafka.ledger import RECORDS_PER_POLL, LEDGER_FETCH_BYTES, ledger_partition
from deadletter.brokers.kafka.monitor_state import QueueState
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_stats import BoxStats

BUDGET = 5.0  # seconds of tailing a sweep; the rest is read by the next one
TURN = 0.002  # seconds we work before others get a turn of the event loop
Offsets = Mapping[str, Mapping[int, int | BrokerError]]  # topic -> partition -> offset
Spans = dict[TopicPartition, tuple[int, int]]


class YieldTimer:
    """Lets others have the event loop when our turn took long enough."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._ends = self._clock() + TURN

    async def yield_if_due(self) -> None:
        """Between two pieces of work."""
        if self._clock() > self._ends:
            await asyncio.sleep(0)
            self._ends = self._clock() + TURN


class KafkaMonitor:
    """See `base.Registers`."""

    def __init__(self, line: KafkaClient) -> None:
        self._line = line
        self._tails: dict[str, QueueState] = {}
        self._consumer: AIOKafkaConsumer | None = None

    async def close(self) -> None:
        """Let go of the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def sweep(self, boxes: Sequence[MonitoredBox], now: int) -> Mapping[str, BoxStats | BrokerError]:
        """A reading per dead box, or what went wrong with it."""
        if not boxes:  # nobody is asked: the connection may be one that has never answered
            self._tails = {}
            return {}
        counts = await self._line.partition_counts_or_errors([name for one in boxes for name in _names(one)])
        found: dict[str, BoxStats | BrokerError] = {}
        for one in boxes:
            count = counts.get(one.dead, BoxMissing(f"{one.dead}: it does not exist"))
            if isinstance(count, BrokerError):
                found[one.dead] = count
        await self._keep([one for one in boxes if one.dead not in found])
        partitions = {
            name: range(count) for tail in self._tails.values() for name in _names(tail.watched)
            if isinstance(count := counts.get(name, 0), int)
        }  # fmt: skip
        starts, ends = await self._bounds(partitions, EARLIEST), await self._bounds(partitions, LATEST)
        deadline = asyncio.get_running_loop().time() + BUDGET
        for kind in ("ledger", "retry", "dead"):
            await self._tail(kind, starts, ends, found, deadline)
        turns = YieldTimer()
        for dead, tail in self._tails.items():
            if dead not in found:
                found[dead] = self._read_off(tail, starts, ends, now)
                await turns.yield_if_due()
        await self._prove_gone()
        return found

    async def _prove_gone(self) -> None:
        """Note where the ledgers end, open transactions included, that tell what became of letters that are gone."""
        asked: dict[TopicPartition, list[tuple[QueueState, int]]] = {}
        for tail in self._tails.values():
            for partition in [p for p, gone in tail.missing.items() if gone and p not in tail.ledger_ends]:
                ledger = TopicPartition(tail.watched.ledger, ledger_partition(partition))
                asked.setdefault(ledger, []).append((tail, partition))
        for ledger, end in (await self._line.list_offsets(dict.fromkeys(asked, LATEST))).items() if asked else ():
            for tail, partition in asked[ledger]:
                if isinstance(end, int):  # else the next sweep asks again
                    tail.ledger_ends[partition] = end

    async def _keep(self, watched: Sequence[MonitoredBox]) -> None:
        """One tail per box that is watched now, begun anew when it is to be read otherwise."""
        kept = {one.dead: self._tails.get(one.dead) for one in watched}
        new = [one for one in watched if (tail := kept[one.dead]) is None or tail.watched != one]
        states = await topics.describe_topics(self._line, [one.dead for one in new]) if new else {}
        for one in new:
            kept[one.dead] = QueueState(one, one.dead in states and states[one.dead].compacted)
        self._tails = {dead: tail for dead, tail in kept.items() if tail is not None}

    async def _bounds(self, partitions: Mapping[str, Iterable[int]], time: int) -> Offsets:
        wanted = {TopicPartition(name, p): time for name, numbers in partitions.items() for p in numbers}
        found: dict[str, dict[int, int | BrokerError]] = {}
        for tp, offset in (await self._line.list_offsets(wanted, committed=True)).items():
            found.setdefault(tp.topic, {})[tp.partition] = offset
        return found

    async def _tail(
        self, kind: str, starts: Offsets, ends: Offsets, found: dict[str, BoxStats | BrokerError], deadline: float
    ) -> None:
        """Read what moved in the ledgers, retry or dead boxes; together, or one by one when that fails."""
        moved: dict[str, Spans] = {}
        turns = YieldTimer()
        for dead, tail in self._tails.items():
            if dead not in found and (spans := _moved(tail, getattr(tail.watched, kind), starts, ends)):
                moved[dead] = spans
            await turns.yield_if_due()
        try:
            await self._read(moved, deadline)
        except BrokerError:
            await self.close()
            for dead in moved:
                try:
                    again = _moved(self._tails[dead], getattr(self._tails[dead].watched, kind), starts, ends)
                    await self._read({dead: again}, deadline)
                except BrokerError as error:
                    found[dead] = error
                    await self.close()

    async def _read(self, moved: Mapping[str, Spans], deadline: float) -> None:
        spans = {tp: span for some in moved.values() for tp, span in some.items()}
        if not spans:
            return
        if self._consumer is not None and not self._line.has_current_credentials(self._consumer):
            await self.close()
        if self._consumer is None:
            self._consumer = await self._line.start_consumer(
                max_partition_fetch_bytes=LEDGER_FETCH_BYTES, fetch_max_bytes=4 * LEDGER_FETCH_BYTES
            )
        turns = YieldTimer()
        tails = {tp: self._tails[dead] for dead, some in moved.items() for tp in some}
        async for records in reads.read_records(self._consumer, spans, RECORDS_PER_POLL):
            for tp, batch in records.items():
                for record in batch:
                    tails[tp].add_record(record)
                    await turns.yield_if_due()
                tails[tp].positions[tp] = batch[-1].offset + 1
            if asyncio.get_running_loop().time() > deadline:
                return
        for tp, (_, end) in spans.items():
            tails[tp].positions[tp] = end

    def _read_off(self, tail: QueueState, starts: Offsets, ends: Offsets, now: int) -> BoxStats | BrokerError:
        caught_up = True
        tail.count_lost()
        for name in _names(tail.watched):
            for partition, start in starts.get(name, {}).items():
                tp, end = TopicPartition(name, partition), ends.get(name, {}).get(partition, 0)
                if isinstance(start, BrokerError) or isinstance(end, BrokerError):
                    return start if isinstance(start, BrokerError) else BoxMissing(f"{name}: it has no end")
                tail.drop_below(tp, start)
                caught_up = caught_up and tail.positions.get(tp, -1) >= end
        try:
            tail.check_marks(ends.get(tail.watched.dead, {}))
        except BrokerError as error:
            return error
        return tail.take_stats(now, caught_up)


def _names(watched: MonitoredBox) -> tuple[str, ...]:
    return (watched.dead, watched.ledger, *((watched.retry,) if watched.retry else ()))


def _moved(tail: QueueState, name: str | None, starts: Offsets, ends: Offsets) -> Spans:
    """The parts of a box that were not read yet; a log that ends before what we read was made anew."""
    spans: Spans = {}
    for partition, end in ends.get(name or "", {}).items():
        tp, start = TopicPartition(name, partition), starts.get(name or "", {}).get(partition)
        if not isinstance(end, int) or not isinstance(start, int):
            continue
        if tail.positions.get(tp, 0) > end and name == tail.watched.dead:
            tail.restart(partition)
        known = tail.positions.get(tp)
        position = tail.first_offset_to_read(tp, start) if known is None else max(known, start)
        tail.positions[tp] = position
        if position < end:
            spans[tp] = (position, end)
    return spans
