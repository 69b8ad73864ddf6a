"""Letters that Spring Kafka, Kafka Connect and Kafka Streams wrote themselves: read, replayed, and known when back."""

import asyncio
import uuid
from dataclasses import dataclass

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.types import MonitoredBox, StoredMessage
from deadletter.clock import now_ms
from deadletter.core.boxes import BoxSpec
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Category, Confidence, Letter, Origin
from deadletter.workers import exit_status
from deadletter.workers.replay.run import ReplayRun
from tests.dialects.applications import HEADERS, PARTITION, PATIENCE, Application
from tests.workers.replay_scene import Scene, number_of

LOCAL = ("127.0.0.0/8", "::1/128", "10.0.0.0/8")
ORDERS = ("read healed", "work healed", "read stubborn", "work stubborn", "read stubborn bare", "work stubborn bare")
OURS = ("dlq-id", "dlq-replays", "dlq-replay")
READ = ("org.apache.kafka.common.errors.SerializationException", "the order cannot be read", Category.Validation)
WORK = ("org.apache.kafka.common.errors.TimeoutException", "the warehouse does not answer", Category.Network)


@dataclass(frozen=True)
class Writer:
    """One library, and what its letters say."""

    library: str
    dialect: str
    read: tuple[str, str, Category] = READ
    work: tuple[str, str, Category] = WORK
    orders: tuple[str, ...] = ORDERS
    names_group: bool = True


SPRING = Writer(
    "Spring",
    "spring-dlt",
    ("org.springframework.kafka.support.serializer.DeserializationException", "failed to deserialize", READ[2]),
    (WORK[0], f"Listener failed; {WORK[1]}", WORK[2]),
    ("work twice healed", "work twice stubborn", *ORDERS),
)
CONNECT = Writer("Connect", "kafka-connect")
STREAMS = Writer("Streams", "kafka-streams", names_group=False)


@pytest.fixture
async def scene(kafka):
    made = Scene(None, f"real-{uuid.uuid4().hex[:8]}", {"kafka": {"bootstrapServers": [kafka]}})
    async with open_broker(made.assignment().broker, lambda *_: b"", LOCAL) as made.broker:
        await made.broker.ensure(BoxSpec(f"{made.name}.second", partitions=1))
        yield await made.build()


def letters(taken: list[StoredMessage]) -> dict[int, Letter]:
    """By the number of the order."""
    return {number_of(one.message): read_letter(one.message, one.place) for one in taken}


def where(origin: Origin) -> tuple[str | None, int | None, int | None]:
    return origin.topic, origin.partition, origin.offset


def check_letters(application: Application, found: dict[int, Letter], writer: Writer) -> None:
    """Every letter is read as the library meant it, and holds the order's bytes."""
    group = application.group if writer.names_group else None
    for number, (sent, words) in enumerate(zip(application.sent, writer.orders, strict=True)):
        message, envelope = found[number].message, found[number].envelope
        failure = envelope.failure
        assert (message.key, message.value) == (sent.key, sent.value)
        assert (envelope.dialect, envelope.confidence, envelope.group) == (writer.dialect, Confidence.Certain, group)
        assert where(envelope.origin) == (application.scene.name, PARTITION, number)
        assert envelope.hop.topic == (application.second if "twice" in words else application.scene.name)
        assert (failure.type, failure.message, failure.category) == (writer.read if "read" in words else writer.work)
        assert failure.stack


async def check_groups(application: Application, found: dict[int, Letter], writer: Writer) -> None:
    """The register sees two causes, however often and over however many hops they struck."""
    boxes, registers = application.scene.boxes, application.scene.broker.monitor()
    async with asyncio.timeout(PATIENCE):
        reading = None
        while reading is None or not reading.caught_up:
            reading = (await registers.sweep([MonitoredBox(boxes.dead, boxes.ledger)], now_ms()))[boxes.dead]
    await registers.close()
    causes = [fingerprint(letter.envelope.failure) for letter in found.values()]
    assert {group.fingerprint: group.letters for group in reading.groups} == {one: causes.count(one) for one in causes}
    assert {group.error_type for group in reading.groups} == {writer.read[0], writer.work[0]}
    assert len(reading.groups) == 2


async def replay(application: Application, monkeypatch: pytest.MonkeyPatch, returning: int) -> None:
    """A whole replay to origin; its verification looks when so many have failed again."""
    scene, sent, wait = application.scene, len(application.sent), ReplayRun._sleep

    async def until_returned(course, seconds):
        await wait(course, seconds)
        if len(await scene.messages()) == 2 * sent:
            await application.buried(sent + returning)

    monkeypatch.setattr(ReplayRun, "_wait", until_returned)
    ending = await scene.replay(verify={"window": "1ms", "maxFailureShare": 100})
    assert (ending.code, ending.reason) == (exit_status.FINISHED, "AllReplayed")


async def check_hygiene(application: Application) -> None:
    """What came back to the source is what was sent: no word of an earlier failure, and bytes untouched."""
    sent, arrived = application.sent, (await application.taken(application.scene.name))[len(application.sent) :]
    for one in arrived:
        message, first = one.message, sent[number_of(one.message)]
        assert (message.key, message.value) == (first.key, first.value)
        assert one.place.partition == PARTITION
        assert message.headers[: -len(OURS)] == HEADERS
        assert tuple(name for name, _ in message.headers[-len(OURS) :]) == OURS
    assert sorted(number_of(one.message) for one in arrived) == list(range(len(sent)))


async def check_returns(application: Application, writer: Writer, stubborn: set[int]) -> None:
    """Letters that failed again were counted, are open, and name the replayed message as their origin."""
    scene, sent = application.scene, len(application.sent)
    (tally,) = await scene.all_progress()
    assert (tally.replayed, tally.failed_again, tally.phase) == (sent, len(stubborn), "Finished")
    assert set(await scene.open_letters()) == stubborn
    back = letters((await application.taken(scene.boxes.dead))[sent:])
    again = {number_of(one.message): one.place for one in (await application.taken(scene.name))[sent:]}
    assert set(back) == stubborn
    for number, letter in back.items():
        place = again[number]
        assert where(letter.envelope.origin) == (place.box, place.partition, place.offset)
        assert letter.envelope.replays == int("bare" not in writer.orders[number])


@pytest.mark.parametrize("writer", [SPRING, CONNECT, STREAMS], ids=lambda writer: writer.library)
async def test_letters_of_a_real_library_are_read_replayed_and_known_when_they_fail_again(
    writer, scene, tmp_path, monkeypatch
):
    application = Application(writer.library, scene, tmp_path)
    stubborn = {number for number, words in enumerate(writer.orders) if "stubborn" in words}
    with application.runs():
        await application.send(*writer.orders)
        found = letters(await application.buried(len(writer.orders)))
        check_letters(application, found, writer)
        await check_groups(application, found, writer)
        await replay(application, monkeypatch, len(stubborn))
    await check_hygiene(application)
    await check_returns(application, writer, stubborn)
