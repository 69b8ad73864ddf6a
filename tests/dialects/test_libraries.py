"""Letters written by Spring Kafka, Connect and Streams are read, replayed and recognised when they return."""

import asyncio
import uuid
from dataclasses import dataclass

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.types import MonitoredBox, StoredMessage
from deadletter.core.box_types import BoxSpec
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Category, Confidence, Letter, Origin
from deadletter.wall_clock import now_ms
from deadletter.workers import exit_status
from deadletter.workers.replay.run import ReplayRun
from tests.dialects.applications import HEADERS, PARTITION, TIMEOUT_S, Application
from tests.workers.replay_scene import Scene, number_of

LOCAL = ("127.0.0.0/8", "::1/128", "10.0.0.0/8")
ORDERS = (
    "read temporary",
    "work temporary",
    "read permanent",
    "work permanent",
    "read permanent headerless",
    "work permanent headerless",
)
OUR_HEADERS = ("dlq-id", "dlq-replays", "dlq-replay")
READ = ("org.apache.kafka.common.errors.SerializationException", "the order cannot be read", Category.Validation)
WORK = ("org.apache.kafka.common.errors.TimeoutException", "the warehouse does not answer", Category.Network)


@dataclass(frozen=True)
class Writer:
    """One library, and the content of its letters."""

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
    ("work twice temporary", "work twice permanent", *ORDERS),
)
CONNECT = Writer("Connect", "kafka-connect")
STREAMS = Writer("Streams", "kafka-streams", names_group=False)


@pytest.fixture
async def scene(kafka):
    made = Scene(None, f"real-{uuid.uuid4().hex[:8]}", {"kafka": {"bootstrapServers": [kafka]}})
    async with open_broker(made.assignment().broker, lambda *_: b"", LOCAL) as made.broker:
        await made.broker.ensure(BoxSpec(f"{made.name}.second", partitions=1))
        yield await made.build()


def letters(stored: list[StoredMessage]) -> dict[int, Letter]:
    """Return letters by the number of their order."""
    return {number_of(one.message): read_letter(one.message, one.place) for one in stored}


def position(origin: Origin) -> tuple[str | None, int | None, int | None]:
    return origin.topic, origin.partition, origin.offset


def check_letters(application: Application, found: dict[int, Letter], writer: Writer) -> None:
    """Check that every letter is read as the library wrote it, with the bytes of the order."""
    group = application.group if writer.names_group else None
    for number, (sent, words) in enumerate(zip(application.sent, writer.orders, strict=True)):
        message, envelope = found[number].message, found[number].envelope
        failure = envelope.failure
        assert (message.key, message.value) == (sent.key, sent.value)
        assert (envelope.dialect, envelope.confidence, envelope.group) == (writer.dialect, Confidence.Certain, group)
        assert position(envelope.origin) == (application.scene.name, PARTITION, number)
        assert envelope.hop.topic == (application.second if "twice" in words else application.scene.name)
        assert (failure.type, failure.message, failure.category) == (writer.read if "read" in words else writer.work)
        assert failure.stack


async def check_groups(application: Application, found: dict[int, Letter], writer: Writer) -> None:
    """Check that a sweep finds two failure groups, over any number of hops."""
    boxes, monitor = application.scene.boxes, application.scene.broker.monitor()
    async with asyncio.timeout(TIMEOUT_S):
        stats = None
        while stats is None or not stats.caught_up:
            stats = (await monitor.sweep([MonitoredBox(boxes.dead, boxes.ledger)], now_ms()))[boxes.dead]
    await monitor.close()
    causes = [fingerprint(letter.envelope.failure) for letter in found.values()]
    assert {group.fingerprint: group.letters for group in stats.groups} == {one: causes.count(one) for one in causes}
    assert {group.error_type for group in stats.groups} == {writer.read[0], writer.work[0]}
    assert len(stats.groups) == 2


async def replay(application: Application, monkeypatch: pytest.MonkeyPatch, returning: int) -> None:
    """Replay all letters to their origin; verification starts when `returning` letters have failed again."""
    scene, sent, sleep = application.scene, len(application.sent), ReplayRun._sleep

    async def sleep_until_returned(run, seconds):
        await sleep(run, seconds)
        if len(await scene.messages()) == 2 * sent:
            await application.buried(sent + returning)

    monkeypatch.setattr(ReplayRun, "_sleep", sleep_until_returned)
    result = await scene.replay(verify={"window": "1ms", "maxFailureShare": 100})
    assert (result.code, result.reason) == (exit_status.FINISHED, "AllReplayed")


async def check_headers(application: Application) -> None:
    """Check that replayed messages equal the sent ones, without headers of the failure."""
    sent, arrived = application.sent, (await application.read(application.scene.name))[len(application.sent) :]
    for one in arrived:
        message, first = one.message, sent[number_of(one.message)]
        assert (message.key, message.value) == (first.key, first.value)
        assert one.place.partition == PARTITION
        assert message.headers[: -len(OUR_HEADERS)] == HEADERS
        assert tuple(name for name, _ in message.headers[-len(OUR_HEADERS) :]) == OUR_HEADERS
    assert sorted(number_of(one.message) for one in arrived) == list(range(len(sent)))


async def check_failed_again(application: Application, writer: Writer, permanent: set[int]) -> None:
    """Check that letters that failed again are counted and open, and name the replayed message as origin."""
    scene, sent = application.scene, len(application.sent)
    (progress,) = await scene.all_progress()
    assert (progress.replayed, progress.failed_again, progress.phase) == (sent, len(permanent), "Finished")
    assert set(await scene.open_letters()) == permanent
    back = letters((await application.read(scene.boxes.dead))[sent:])
    again = {number_of(one.message): one.place for one in (await application.read(scene.name))[sent:]}
    assert set(back) == permanent
    for number, letter in back.items():
        place = again[number]
        assert position(letter.envelope.origin) == (place.box, place.partition, place.offset)
        assert letter.envelope.replays == int("headerless" not in writer.orders[number])


@pytest.mark.parametrize("writer", [SPRING, CONNECT, STREAMS], ids=lambda writer: writer.library)
async def test_letters_of_a_real_library_are_read_replayed_and_recognised_when_they_fail_again(
    writer, scene, tmp_path, monkeypatch
):
    application = Application(writer.library, scene, tmp_path)
    permanent = {number for number, words in enumerate(writer.orders) if "permanent" in words}
    with application.running():
        await application.send(*writer.orders)
        found = letters(await application.buried(len(writer.orders)))
        check_letters(application, found, writer)
        await check_groups(application, found, writer)
        await replay(application, monkeypatch, len(permanent))
    await check_headers(application)
    await check_failed_again(application, writer, permanent)
