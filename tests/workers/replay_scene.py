"""Shared by replay tests: a dead box with letters of ours, assignments, whole Replays on any broker."""

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from deadletter.api.worker_config import Boxes, ReplayAssignment
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core import headers
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import SEQUENCE_MASK, Category, Envelope, Failure, Message, Origin, Place
from deadletter.core.replay_progress import PartitionProgress
from deadletter.workers.exit_status import ExitStatus
from deadletter.workers.replay.main import run_replay

BURIALS = itertools.count()
KAFKA = {"kafka": {"bootstrapServers": ["kafka.test:9092"]}}
REDIS = {"redis": {"url": "redis://redis.test:6379/0"}}
SPRING_TOPIC = "kafka_dlt-original-topic"


def letter(
    number: int, origin: str = "orders", failure: Failure | None = None, partition: int = 0, **envelope: Any
) -> Message:
    failure = failure or Failure("Timeout", f"no answer for order {number}", Category.Transient)
    place = Origin(origin, partition, number, 1_700_000_000_000 + number)
    known = Envelope(origin=place, hop=place, group="billing", attempts=5, failed_at=1_700_000_000_000 + number)
    for name, value in envelope.items():
        setattr(known, name, value)
    known.failure = failure
    message = Message(b"key-%d" % number, b'{"n": %d}' % number, (("trace", b"t%d" % number),), 1_700_000_000_000)
    return headers.add_headers(message, known)


def number_of(message: Message) -> int:
    return int((message.key or b"-1").rsplit(b"-", 1)[1])


@dataclass
class Scene:
    """A queue with one dead box on one broker, and what a Replay of it needs."""

    broker: Broker
    name: str = "orders"
    connection: dict[str, Any] = field(default_factory=lambda: KAFKA)
    partitions: int = 1

    @property
    def boxes(self) -> Boxes:
        dead = f"{self.name}.dlq"
        return Boxes(source=self.name, dead=dead, retry=f"{dead}.retry", ledger=f"{dead}.ledger")

    async def build(self) -> "Scene":
        replicas = min((await self.broker.server_info()).brokers, 3)
        await self.broker.ensure(BoxSpec(self.name, 2, replicas))
        await self.broker.ensure(BoxSpec(self.boxes.dead, self.partitions, replicas, retention_ms=-1))
        await self.broker.ensure(BoxSpec(self.boxes.retry or "", 1, replicas, is_retry_box=True, retention_ms=-1))
        return self

    async def bury(self, *messages: Message, partition: int | None = 0) -> None:
        burial = f"test-{next(BURIALS)}"  # the same number may be buried more than once
        places = [Place(burial, partition or 0, number_of(message)) for message in messages]
        await self.broker.publish(
            [
                Publication(self.boxes.dead, message, place, partition)
                for message, place in zip(messages, places, strict=True)
            ]
        )

    def assignment(self, uid: str = "uid-1", target: Any = None, **more: Any) -> ReplayAssignment:
        """Return an assignment; `more` are fields of the assignment or, in the notation of the CRD, of the spec."""
        fields = ("preview_uid", "observe", "http", "allow", "origin")
        of_assignment = {name: more.pop(name) for name in fields if name in more}
        return ReplayAssignment.model_validate(
            {
                "namespace": "test",
                "name": "replay",
                "uid": uid,
                "queue": "orders",
                "broker": self.connection,
                "boxes": self.boxes.model_dump(),
                "spec": {"queueRef": {"name": "orders"}, **more},
                "target": target or {"kind": "Origin"},
                **of_assignment,
            }
        )

    async def run(self, assignment: ReplayAssignment, **more: Any) -> ExitStatus:
        return await run_replay(assignment, self.broker, more.pop("stop", asyncio.Event()), **more)

    async def replay(self, uid: str = "uid-1", **more: Any) -> ExitStatus:
        return await self.run(self.assignment(uid, **more))

    async def all_progress(self, uid: str = "uid-1") -> list[PartitionProgress]:
        found = []
        for partition in range(self.partitions):
            async with self.broker.partition_writer(self.boxes.dead, self.boxes.ledger, partition, uid) as writer:
                assert writer.progress is not None
                found.append(writer.progress)
        return found

    async def messages(self, box: str | None = None) -> list[Message]:
        box = box or self.name
        spans = await self.broker.window(box)
        return [taken.message async for batch in self.broker.read(box, spans) for taken in batch]

    async def numbers(self, box: str | None = None) -> list[int]:
        return [number_of(message) for message in await self.messages(box)]

    async def open_letters(self) -> list[int]:
        settled = await self.broker.settled_offsets(self.boxes.dead, self.boxes.ledger)
        spans = await self.broker.window(self.boxes.dead)
        found = []
        async for batch in self.broker.read(self.boxes.dead, spans):
            found += [number_of(t.message) for t in batch if t.place.offset not in settled.get(t.place.partition, ())]
        return found


def adds_up(all_progress: list[PartitionProgress]) -> bool:
    """True if matched = replayed + archived + discarded + skipped, without letters whose expression failed."""
    for progress in all_progress:
        skipped = sum(count for reason, count in progress.skipped.items() if reason != "SelectorError")
        if progress.matched != progress.replayed + progress.archived + progress.discarded + skipped:
            return False
    return True


class Application:
    """An application that consumes what is replayed; some letters fail again, with or without our headers."""

    def __init__(
        self, scene: Scene, fails: set[int], keeps_headers: bool, partition: int = 1, passes_on: bool = False
    ) -> None:
        self.scene, self.fails, self.keeps_headers, self.partition = scene, fails, keeps_headers, partition
        self.passes_on = passes_on  # through a retry topic of its own, as Spring's retryable topics do
        self.seen: set[tuple[int, int]] = set()

    async def consume(self) -> None:
        spans = await self.scene.broker.window(self.scene.name)
        async for batch in self.scene.broker.read(self.scene.name, spans):
            for taken in batch:
                at = (taken.place.partition, taken.place.offset)
                if at not in self.seen and number_of(taken.message) in self.fails:
                    await self.scene.bury(self._fail_again(taken), partition=self.partition)
                self.seen.add(at)

    def _fail_again(self, taken) -> Message:
        place, old = taken.place, taken.message.headers if self.keeps_headers else ()
        if place.offset > SEQUENCE_MASK:  # no Kafka dialect can name an entry of a stream
            hop = Origin(place.box, 0, place.offset)
            known = replace(
                headers.read_headers(dict(old)), origin=hop, hop=hop, failed_at=1, failure=Failure("Timeout", "again")
            )
            return headers.add_headers(Message(taken.message.key, taken.message.value, (), 1), known)
        origin = (
            (SPRING_TOPIC, place.box.encode()),
            ("kafka_dlt-original-partition", place.partition.to_bytes(4, "big")),
            ("kafka_dlt-original-offset", place.offset.to_bytes(8, "big")),
            ("kafka_dlt-exception-fqcn", b"java.net.SocketTimeoutException"),
        )
        if self.passes_on:
            origin += ((SPRING_TOPIC, b"a-retry-topic"), ("kafka_dlt-original-offset", (7).to_bytes(8, "big")))
        return Message(taken.message.key, taken.message.value, (*old, *origin), 1)


def consume_during_waits(monkeypatch, application: Application) -> None:
    """Let the application consume each time a Replay waits."""

    async def wait(self, seconds):
        await application.consume()
        await asyncio.sleep(0)

    monkeypatch.setattr("deadletter.workers.replay.run.ReplayRun._sleep", wait)
