"""Boxes, letters and claims for tests of any broker."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.types import Claim, Delivered, MonitoredBox, Publication, StoredMessage, SubscriptionSpec
from deadletter.clock import now_ms
from deadletter.core.boxes import BoxSpec
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, Span

TIMEOUT_S = 120.0
MakeName = Callable[[str], str]
POISON = (
    Message(None, None, (("only", b"headers"),)),
    Message(b"", b"", ()),
    Message(b"\xff\x00key", b"\x00\xfe value", (("a", None), ("a", b""), ("b", b"\xc3\x28"), ("a", b"again"))),
    Message(b"many", b"headers", tuple((f"h{n}", bytes([n % 256])) for n in range(500))),
    Message(b"big", b"x" * 700_000, ()),
)


@dataclass(frozen=True)
class Boxes:
    """The boxes of one queue, and a target to replay to."""

    source: str
    dead: str
    retry: str
    ledger: str
    target: str
    group: str

    def subscription(self, consumer: str = "pod-0", from_earliest: bool = True, has_started: bool = False) -> SubscriptionSpec:
        return SubscriptionSpec(
            self.source, self.group, self.dead, self.retry, self.ledger, consumer, from_earliest, has_started
        )

    @property
    def monitored(self) -> MonitoredBox:
        return MonitoredBox(self.dead, self.ledger, self.retry)


def box_names(source: str) -> Boxes:
    dead = f"{source}.dlq"
    return Boxes(source, dead, f"{dead}.retry", f"{dead}.ledger", f"{source}.target", f"{source}.group")


async def make_boxes(broker: Broker, source: str, partitions: int = 1) -> Boxes:
    """Make the boxes of a queue, on three brokers with three replicas."""
    boxes, replicas = box_names(source), min((await broker.server_info()).brokers, 3)
    for name in (boxes.source, boxes.dead, boxes.target):
        await broker.ensure(BoxSpec(name, partitions, replicas))
    await broker.ensure(BoxSpec(boxes.retry, partitions, replicas, retention_ms=-1, is_retry_box=True))
    return boxes


def numbered_messages(count: int, start: int = 0) -> list[Message]:
    return [Message(f"k{n}".encode(), f"v{n}".encode(), (("n", str(n).encode()),)) for n in range(start, start + count)]


async def publish_all(broker: Broker, box: str, messages: list[Message], partition: int | None = 0) -> None:
    outside = uuid.uuid4().hex
    await broker.publish([Publication(box, m, Place(outside, 0, n), partition) for n, m in enumerate(messages)])


def payload(message: Message) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """All that must come back byte for byte."""
    return message.key, message.value, tuple(message.headers)


async def read_all(broker: Broker, box: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    async for batch in broker.read(box, await broker.window(box)):
        found += batch
    return found


async def values(broker: Broker, box: str) -> list[bytes | None]:
    return [one.message.value for one in await read_all(broker, box)]


def progress_of(letters: list[StoredMessage], **counts: int) -> PartitionProgress:
    end = letters[-1].place.offset + 1
    return PartitionProgress(Span(0, letters[0].place.offset, end), now_ms(), end, **counts)


def publications_to(target: str, letters: list[StoredMessage]) -> list[Publication]:
    return [Publication(target, one.message, one.place) for one in letters]


async def claim_some(subscription: Subscription, count: int, patience: float = TIMEOUT_S) -> list[Claim]:
    """At least `count` claims, however long the group takes to form."""
    claims: list[Claim] = []
    deadline = time.monotonic() + patience
    while len(claims) < count:
        assert time.monotonic() < deadline, f"only {len(claims)} of {count} claims came"
        claims += await subscription.claim(count - len(claims))
    return claims


async def settle_all(subscription: Subscription, claims: list[Claim]) -> None:
    await asyncio.gather(*(subscription.settle(claim, Delivered()) for claim in claims))
