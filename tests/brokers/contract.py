"""What every broker keeps: the same tests on memory, Kafka and Redis.

A subclass gives the fixture `broker` (an open Broker). `fresh` makes names that no other test uses.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from deadletter.brokers.base import Broker, Desk
from deadletter.brokers.errors import BoxMissing, BrokerError, Fenced
from deadletter.brokers.values import (
    BoxSpec,
    Buried,
    Claim,
    CourierWord,
    Delivered,
    DeskSpec,
    Discarded,
    Parked,
    Publication,
    Step,
    Taken,
    Watched,
)
from deadletter.core.letters import Message, Place
from deadletter.core.tallies import Span, Tally, Why

PATIENCE = 120.0
Fresh = Callable[[str], str]
POISON = (
    Message(None, None, (("only", b"headers"),)),
    Message(b"", b"", ()),
    Message(b"\xff\x00key", b"\x00\xfe value", (("a", None), ("a", b""), ("b", b"\xc3\x28"), ("a", b"again"))),
    Message(b"many", b"headers", tuple((f"h{n}", bytes([n % 256])) for n in range(500))),
    Message(b"big", b"x" * 700_000, ()),
)


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Boxes:
    """The boxes of one queue, and a target to replay to."""

    source: str
    dead: str
    retry: str
    ledger: str
    target: str
    group: str

    def desk(self, consumer: str = "pod-0", from_earliest: bool = True) -> DeskSpec:
        return DeskSpec(self.source, self.group, self.dead, self.retry, self.ledger, consumer, from_earliest)

    @property
    def watched(self) -> Watched:
        return Watched(self.dead, self.ledger, self.retry)


def named(source: str) -> Boxes:
    dead = f"{source}.dlq"
    return Boxes(source, dead, f"{dead}.retry", f"{dead}.ledger", f"{source}.target", f"{source}.group")


async def make_boxes(broker: Broker, source: str, partitions: int = 1) -> Boxes:
    boxes = named(source)
    for name in (boxes.source, boxes.dead, boxes.target):
        await broker.ensure(BoxSpec(name, partitions))
    await broker.ensure(BoxSpec(boxes.retry, partitions, retention_ms=-1, parking=True))
    return boxes


def numbered(count: int, start: int = 0) -> list[Message]:
    return [Message(f"k{n}".encode(), f"v{n}".encode(), (("n", str(n).encode()),)) for n in range(start, start + count)]


async def lay(broker: Broker, box: str, messages: list[Message], partition: int | None = 0) -> None:
    outside = uuid.uuid4().hex
    await broker.append([Publication(box, m, Place(outside, 0, n), partition) for n, m in enumerate(messages)])


async def contents(broker: Broker, box: str) -> list[Taken]:
    found: list[Taken] = []
    async for batch in broker.read(box, await broker.window(box)):
        found += batch
    return found


async def values(broker: Broker, box: str) -> list[bytes | None]:
    return [one.message.value for one in await contents(broker, box)]


def tally_of(letters: list[Taken], **counts: int) -> Tally:
    end = letters[-1].place.offset + 1
    return Tally(Span(0, letters[0].place.offset, end), now(), end, **counts)


def republish(target: str, letters: list[Taken]) -> list[Publication]:
    return [Publication(target, one.message, one.place) for one in letters]


async def claim_some(desk: Desk, count: int, patience: float = PATIENCE) -> list[Claim]:
    """At least `count` claims, however long the group takes to form."""
    claims: list[Claim] = []
    deadline = time.monotonic() + patience
    while len(claims) < count:
        assert time.monotonic() < deadline, f"only {len(claims)} of {count} claims came"
        claims += await desk.claim(count - len(claims))
    return claims


async def settle_all(desk: Desk, claims: list[Claim]) -> None:
    await asyncio.gather(*(desk.settle(claim, Delivered()) for claim in claims))


class BrokerContract:
    """Subclass it with a fixture `broker`."""

    @pytest.fixture
    def fresh(self) -> Fresh:
        return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"

    async def test_the_server_says_who_it_is(self, broker: Broker) -> None:
        server = await broker.server()
        assert server.kind
        assert server.id
        assert server.brokers >= 1

    async def test_a_box_is_made_once(self, broker: Broker, fresh: Fresh) -> None:
        spec = BoxSpec(fresh("box"), 1)
        assert await broker.ensure(spec) == await broker.ensure(spec)
        assert set(await broker.describe([spec.name, fresh("nowhere")])) == {spec.name}

    async def test_an_adopted_box_is_never_made(self, broker: Broker, fresh: Fresh) -> None:
        spec = BoxSpec(fresh("box"), adopt=True)
        with pytest.raises(BoxMissing):
            await broker.ensure(spec)
        assert not await broker.describe([spec.name])

    async def test_a_dropped_box_is_gone_and_dropping_again_is_fine(self, broker: Broker, fresh: Fresh) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await broker.drop([name])
        await broker.drop([name, fresh("nowhere")])
        assert not await broker.describe([name])

    async def test_a_missing_box_has_no_window(self, broker: Broker, fresh: Fresh) -> None:
        with pytest.raises(BoxMissing):
            await broker.window(fresh("nowhere"))

    async def test_poison_comes_back_byte_for_byte(self, broker: Broker, fresh: Fresh) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await lay(broker, name, list(POISON))
        found = [one.message for one in await contents(broker, name)]
        assert [(m.key, m.value, m.headers) for m in found] == [(m.key, m.value, m.headers) for m in POISON]

    async def test_reading_consumes_nothing_and_keeps_order(self, broker: Broker, fresh: Fresh) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await lay(broker, name, numbered(50))
        first, second = await contents(broker, name), await contents(broker, name)
        assert [one.message.value for one in first] == [m.value for m in numbered(50)]
        assert [one.place for one in first] == [one.place for one in second]

    async def test_a_frozen_window_does_not_grow(self, broker: Broker, fresh: Fresh) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await lay(broker, name, numbered(5))
        window = await broker.window(name)
        await lay(broker, name, numbered(5, 5))
        found = [one async for batch in broker.read(name, window) for one in batch]
        assert [one.message.value for one in found] == [m.value for m in numbered(5)]

    async def test_a_moved_letter_arrives_once_and_is_settled(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.dead, numbered(10))
        letters = await contents(broker, boxes.dead)
        chosen = letters[::2]
        offsets = [one.place.offset for one in chosen]
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
            assert mover.tally is None
            assert all(mover.is_open(one.place.offset) for one in letters)
            tally = tally_of(letters, scanned=10, matched=5, replayed=5)
            await mover.commit(Step(tally, republish(boxes.target, chosen), {Why.Replayed: offsets}))
        assert await values(broker, boxes.target) == [one.message.value for one in chosen]
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as again:
            assert again.tally == tally
            assert [again.is_open(one.place.offset) for one in letters] == [False, True] * 5
        await self.check_settled(broker, boxes, offsets)

    async def check_settled(self, broker: Broker, boxes: Boxes, offsets: list[int]) -> None:
        """In the ledger, or gone from the box."""
        settled = (await broker.settled(boxes.dead, boxes.ledger)).get(0, set[int]())
        there = {one.place.offset for one in await contents(broker, boxes.dead)}
        assert all(offset in settled or offset not in there for offset in offsets)

    async def test_a_second_mover_fences_the_first(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.dead, numbered(2))
        letters = await contents(broker, boxes.dead)
        step = Step(
            tally_of(letters), republish(boxes.target, letters), {Why.Replayed: [x.place.offset for x in letters]}
        )
        movers = (broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") for _ in range(2))
        async with next(movers) as first, next(movers) as second:
            with pytest.raises(Fenced):
                await first.commit(step)
            await second.commit(step)
        assert await values(broker, boxes.target) == [m.value for m in numbered(2)]

    async def test_a_missing_target_settles_nothing(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.dead, numbered(1))
        letters = await contents(broker, boxes.dead)
        step = Step(tally_of(letters), republish(fresh("nowhere"), letters), {Why.Replayed: [letters[0].place.offset]})
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
            with pytest.raises(BoxMissing):
                await mover.commit(step)
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as again:
            assert again.tally is None
            assert again.is_open(letters[0].place.offset)

    async def test_a_selection_is_kept_until_it_is_forgotten(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.dead, numbered(6))
        letters = await contents(broker, boxes.dead)
        chosen = [one.place.offset for one in letters[1:4]]
        async with broker.mover(boxes.dead, boxes.ledger, 0, "dry") as mover:
            await mover.commit(Step(tally_of(letters), selected=chosen[:1]))
            await mover.commit(Step(tally_of(letters), selected=chosen[1:]))
        assert sorted((await broker.selected(boxes.ledger, "dry"))[0]) == chosen
        await broker.forget(boxes.ledger, "dry")
        assert not any((await broker.selected(boxes.ledger, "dry")).values())
        assert not any((await broker.selected(boxes.ledger, "never")).values())
        async with broker.mover(boxes.dead, boxes.ledger, 0, "dry") as mover:
            assert mover.tally is None

    async def test_an_archived_letter_can_be_restored_once(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.dead, numbered(2))
        letters = await contents(broker, boxes.dead)
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
            await mover.commit(Step(tally_of(letters), settled={Why.Archived: [letters[0].place.offset]}))
            assert not mover.is_open(letters[0].place.offset)
        shelf = [one async for b in broker.read(boxes.dead, await broker.window(boxes.dead, True), True) for one in b]
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-2", archived=True) as mover:
            archived = [one for one in shelf if mover.is_open(one.place.offset)]
            assert [one.message.value for one in archived] == [b"v0"]
            offsets = [one.place.offset for one in archived]
            await mover.commit(Step(tally_of(archived), republish(boxes.target, archived), {Why.Replayed: offsets}))
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-3", archived=True) as mover:
            assert not any(mover.is_open(one.place.offset) for one in shelf)
        assert await values(broker, boxes.target) == [b"v0"]

    async def test_a_sweep_counts_what_is_open(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        registers = broker.registers()
        try:
            assert (await self.reading(registers, boxes)).depth == 0
            await lay(broker, boxes.dead, numbered(7))
            reading = await self.reading(registers, boxes, depth=7)
            assert reading.oldest is not None
            letters = await contents(broker, boxes.dead)
            offsets = [one.place.offset for one in letters[:3]]
            async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
                await mover.commit(Step(tally_of(letters, discarded=3), settled={Why.Discarded: offsets}))
            reading = await self.reading(registers, boxes, depth=4)
            assert sum(group.letters for group in reading.groups) == 4
            assert [tally.discarded for tally in reading.tallies["uid-1"]] == [3]
            missing = Watched(fresh("nowhere"), fresh("nowhere"))
            found = await registers.sweep([missing, boxes.watched], now())
            assert isinstance(found[missing.dead], BrokerError)
            assert not isinstance(found[boxes.dead], BrokerError)
        finally:
            await registers.close()

    async def reading(self, registers, boxes: Boxes, depth: int = 0):
        """The reading once it has caught up with what is there."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = (await registers.sweep([boxes.watched], now()))[boxes.dead]
            if isinstance(found, BrokerError):
                raise found
            if found.caught_up and found.depth == depth:
                return found
            assert time.monotonic() < deadline, f"depth {found.depth}, wanted {depth}"
            await asyncio.sleep(0.1)

    async def test_what_was_delivered_is_not_claimed_again(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(10))
        async with broker.desk(boxes.desk()) as desk:
            claims = await claim_some(desk, 10)
            assert [claim.message.value for claim in claims] == [m.value for m in numbered(10)]
            assert all(desk.holds(claim) for claim in claims)
            # Out of order, and two stay in our hands.
            await settle_all(desk, [claims[n] for n in (9, 3, 1, 0, 5, 6, 8, 4)])
        await lay(broker, boxes.source, numbered(1, 10))
        async with broker.desk(boxes.desk()) as desk:
            again = await claim_some(desk, 3)
            assert sorted(claim.message.value or b"" for claim in again) == [b"v10", b"v2", b"v7"]
            await settle_all(desk, again)
        async with broker.desk(boxes.desk()) as desk:
            assert await desk.claim(5) == []

    async def test_a_new_group_starts_at_the_end_when_asked(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(3))
        async with broker.desk(boxes.desk(from_earliest=False)) as desk:
            assert await desk.claim(1) == []
        await lay(broker, boxes.source, numbered(1, 3))
        async with broker.desk(boxes.desk(from_earliest=False)) as desk:
            assert [claim.message.value for claim in await claim_some(desk, 1)] == [b"v3"]

    async def test_noted_attempts_survive_a_restart(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(2))
        async with broker.desk(boxes.desk()) as desk:
            first, second = await claim_some(desk, 2)
            desk.note(first, 3, 1_700_000_000_123)
            await desk.settle(second, Delivered())
        async with broker.desk(boxes.desk()) as desk:
            (again,) = await claim_some(desk, 1)
            assert again.message.value == b"v0"
            assert (again.attempts, again.first_failed_at) == (3, 1_700_000_000_123)

    async def test_a_buried_letter_lies_in_the_dead_box_once(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(3))
        async with broker.desk(boxes.desk()) as desk:
            claims = await claim_some(desk, 3)
            letter = Message(claims[1].message.key, claims[1].message.value, (("why", b"broken"),))
            await asyncio.gather(
                desk.settle(claims[0], Delivered()),
                desk.settle(claims[1], Buried(boxes.dead, letter)),
                desk.settle(claims[2], Discarded()),
            )
        (found,) = await contents(broker, boxes.dead)
        assert (found.message.key, found.message.value, found.message.headers) == (b"k1", b"v1", letter.headers)
        async with broker.desk(boxes.desk()) as desk:
            assert await desk.claim(1) == []

    async def test_a_letter_that_cannot_be_buried_stays_ours(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(2))
        async with broker.desk(boxes.desk()) as desk:
            first, second = await claim_some(desk, 2)
            with pytest.raises(BoxMissing):
                await desk.settle(first, Buried(fresh("nowhere"), first.message))
            assert desk.holds(first)
            await desk.settle(second, Delivered())
            await desk.settle(first, Buried(boxes.dead, first.message))
        assert await values(broker, boxes.dead) == [b"v0"]
        async with broker.desk(boxes.desk()) as desk:
            assert await desk.claim(1) == []

    async def test_a_parked_letter_comes_back_when_due(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(2))
        async with broker.desk(boxes.desk()) as desk:
            first, second = await claim_some(desk, 2)
            desk.note(first, 2, 1_700_000_000_000)
            await desk.settle(first, Parked(first.message, now() + 300))
            await desk.settle(second, Parked(second.message, now() + 3_600_000))
            (due,) = await claim_some(desk, 1)
            assert due.parked
            assert due.message.value == b"v0"
            assert (due.attempts, due.first_failed_at) == (2, 1_700_000_000_000)
            assert desk.parked >= 1
            desk.note(due, 3, 1_700_000_000_000)
            await desk.settle(due, Parked(due.message, now() + 100))
            (again,) = await claim_some(desk, 1)
            assert again.attempts == 3
            await desk.settle(again, Buried(boxes.dead, again.message))
            assert await desk.claim(1) == []
        assert await values(broker, boxes.dead) == [b"v0"]

    async def test_a_parked_letter_survives_a_restart(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.source, numbered(2))
        async with broker.desk(boxes.desk()) as desk:
            for claim in await claim_some(desk, 2):
                await desk.settle(claim, Parked(claim.message, now()))
            (due,) = await claim_some(desk, 1)
            await desk.settle(due, Delivered())
        async with broker.desk(boxes.desk()) as desk:
            (left,) = await claim_some(desk, 1)
            assert {due.message.value, left.message.value} == {b"v0", b"v1"}
            await desk.settle(left, Delivered())
        async with broker.desk(boxes.desk()) as desk:
            assert await desk.claim(1) == []

    async def test_a_letter_replayed_into_the_retry_box_is_claimed(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await lay(broker, boxes.dead, numbered(1))
        letters = await contents(broker, boxes.dead)
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
            publication = Publication(boxes.retry, letters[0].message, letters[0].place, due_at=now())
            await mover.commit(Step(tally_of(letters), [publication], {Why.Replayed: [letters[0].place.offset]}))
        async with broker.desk(boxes.desk()) as desk:
            (claim,) = await claim_some(desk, 1)
            assert (claim.message.value, claim.parked, claim.attempts) == (b"v0", True, 0)
            await desk.settle(claim, Delivered())

    async def test_a_couriers_word_reaches_the_sweep(self, broker: Broker, fresh: Fresh) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        registers = broker.registers()
        word = CourierWord("pod-0", circuit="Open", paused="CircuitOpen", message="5 in a row", parked=2, at=now())
        try:
            async with broker.desk(boxes.desk()) as desk:
                await desk.say(word)
                assert (await self.reading(registers, boxes)).couriers == (word,)
        finally:
            await registers.close()
