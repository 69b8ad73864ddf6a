"""What replay tests share: a dead box with letters of ours, an assignment, a whole replay on any broker."""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

from deadletter.api.assignments import Boxes, ReplayAssignment
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core import headers
from deadletter.core.box_spec import BoxSpec
from deadletter.core.letters import Category, Envelope, Failure, Message, Origin, Place
from deadletter.core.replay_progress import PartitionProgress
from deadletter.workers.exit_status import ExitStatus
from deadletter.workers.replay.main import run_replay

CALLS = itertools.count()
KAFKA = {"kafka": {"bootstrapServers": ["kafka.test:9092"]}}
REDIS = {"redis": {"url": "redis://redis.test:6379/0"}}


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
    """One dead box on one broker, with everything a Replay of it needs."""

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
        call = f"test-{next(CALLS)}"  # the same number may die more than once
        places = [Place(call, partition or 0, number_of(message)) for message in messages]
        await self.broker.publish(
            [
                Publication(self.boxes.dead, message, place, partition)
                for message, place in zip(messages, places, strict=True)
            ]
        )

    def assignment(self, uid: str = "uid-1", target: Any = None, **more: Any) -> ReplayAssignment:
        told = {name: more.pop(name) for name in ("preview_uid", "observe", "http", "allow", "origin") if name in more}
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
                **told,
            }
        )

    async def run(self, assignment: ReplayAssignment, **more: Any) -> ExitStatus:
        return await run_replay(assignment, self.broker, more.pop("stop", asyncio.Event()), **more)

    async def replay(self, uid: str = "uid-1", **more: Any) -> ExitStatus:
        return await self.run(self.assignment(uid, **more))

    async def tallies(self, uid: str = "uid-1") -> list[PartitionProgress]:
        found = []
        for partition in range(self.partitions):
            async with self.broker.partition_writer(self.boxes.dead, self.boxes.ledger, partition, uid) as mover:
                assert mover.progress is not None
                found.append(mover.progress)
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


def adds_up(tallies: list[PartitionProgress]) -> bool:
    """matched = replayed + archived + discarded + skipped, but for letters whose expression failed."""
    for tally in tallies:
        skipped = sum(count for why, count in tally.skipped.items() if why != "SelectorError")
        if tally.matched != tally.replayed + tally.archived + tally.discarded + skipped:
            return False
    return True
