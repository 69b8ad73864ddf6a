"""Helpers for tests of every broker: boxes, messages, claims."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from deadletter.brokers.contract import Broker, Subscription
from deadletter.brokers.types import Claim, Delivered, MonitoredBox, Publication, StoredMessage, SubscriptionSpec
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from deadletter.core.replay_progress import PartitionProgress, Span
from deadletter.wall_clock import now_ms

TIMEOUT_S = 120.0
MakeName = Callable[[str], str]
UNUSUAL_MESSAGES = (
    Message(None, None, (("only", b"headers"),)),
    Message(b"", b"", ()),
    Message(b"\xff\x00key", b"\x00\xfe value", (("a", None), ("a", b""), ("b", b"\xc3\x28"), ("a", b"again"))),
    Message(b"many", b"headers", tuple((f"h{n}", bytes([n % 256])) for n in range(500))),
    Message(b"big", b"x" * 700_000, ()),
)


@dataclass(frozen=True)
class Boxes:
    """The boxes and the consumer group of one queue, and a box to replay to."""

    source: str
    dead: str
    retry: str
    ledger: str
    target: str
    group: str

    def subscription(
        self, consumer: str = "pod-0", from_earliest: bool = True, has_started: bool = False
    ) -> SubscriptionSpec:
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
    """Create the boxes of a queue, with three replicas if there are three brokers."""
    boxes, replicas = box_names(source), min((await broker.server_info()).brokers, 3)
    for name in (boxes.source, boxes.dead, boxes.target):
        await broker.ensure(BoxSpec(name, partitions, replicas))
    await broker.ensure(BoxSpec(boxes.retry, partitions, replicas, retention_ms=-1, is_retry_box=True))
    return boxes


def numbered_messages(count: int, start: int = 0) -> list[Message]:
    return [Message(f"k{n}".encode(), f"v{n}".encode(), (("n", str(n).encode()),)) for n in range(start, start + count)]


async def publish_all(broker: Broker, box: str, messages: list[Message], partition: int | None = 0) -> None:
    """Publish as an application would: each message is a letter of a box that does not exist."""
    other_box = uuid.uuid4().hex
    await broker.publish([Publication(box, m, Place(other_box, 0, n), partition) for n, m in enumerate(messages)])


def payload(message: Message) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """Return everything that must be preserved byte for byte."""
    return message.key, message.value, tuple(message.headers)


async def read_all(broker: Broker, box: str) -> list[StoredMessage]:
    """Read all messages of a box."""
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


async def claim_some(subscription: Subscription, count: int, timeout_s: float = TIMEOUT_S) -> list[Claim]:
    """Claim until there are at least `count` claims; the group may need some time to form."""
    claims: list[Claim] = []
    deadline = time.monotonic() + timeout_s
    while len(claims) < count:
        assert time.monotonic() < deadline, f"only {len(claims)} of {count} were claimed"
        claims += await subscription.claim(count - len(claims))
    return claims


async def settle_all(subscription: Subscription, claims: list[Claim]) -> None:
    await asyncio.gather(*(subscription.settle(claim, Delivered()) for claim in claims))
