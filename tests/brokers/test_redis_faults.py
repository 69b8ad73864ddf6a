"""What only Redis can do to us: lost replies, memory that ends, trimmed entries, sleeping couriers, ACLs."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from deadletter.api.brokerconnections import BrokerConnectionSpec
from deadletter.brokers.base import Broker
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import (
    AuthenticationFailed,
    BoxConflict,
    BoxRefused,
    BrokerUnreachable,
    Fenced,
    LedgerCorrupt,
    NotAuthorised,
    NotSupported,
)
from deadletter.brokers.redis import hands
from deadletter.brokers.values import BoxSpec, Buried, Delivered, Parked, Publication, Step
from deadletter.core.letters import Message, Place
from deadletter.core.tallies import Why
from tests.brokers.servers import HERE, own_redis, wired
from tests.brokers.staging import (
    PATIENCE,
    claim_some,
    contents,
    lay,
    make_boxes,
    now,
    numbered,
    republish,
    tally_of,
    values,
)
from tests.brokers.test_redis import LOOPBACK, fresh_name, no_secrets, spec_of


@pytest.fixture
async def broker(redis: str) -> AsyncIterator[Broker]:
    async with open_broker(spec_of(redis), no_secrets, LOOPBACK) as opened:
        yield opened


@pytest.fixture
async def client(redis: str) -> AsyncIterator[Redis]:
    made = Redis.from_url(redis)
    yield made
    await made.aclose()


def url_of(port: int) -> str:
    return f"redis://{HERE}:{port}/0"


async def test_a_lost_reply_to_a_publication_doubles_nothing(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("lost"))
    await lay(broker, boxes.dead, numbered(20))
    letters = await contents(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    step = Step(tally_of(letters, replayed=20), republish(boxes.target, letters), {Why.Replayed: offsets})
    async with (
        wired(urlsplit(redis).netloc) as wire,
        open_broker(spec_of(url_of(wire.port)), no_secrets, LOOPBACK) as shaky,
    ):
        async with shaky.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
            wire.lose(b"fence")
            with pytest.raises(BrokerUnreachable):
                await mover.commit(step)
            assert wire.lost == 1
            with pytest.raises(Fenced):
                await mover.commit(step)  # it is spent
        assert len(await contents(broker, boxes.target)) == 20  # the letters went through, the reply did not
        async with shaky.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
            assert mover.tally is None
            await mover.commit(step)
    assert await values(broker, boxes.target) == [m.value for m in numbered(20)]
    assert await contents(broker, boxes.dead) == []
    assert len(await broker.produced(boxes.ledger, "uid-1")) == 20


async def test_a_lost_reply_to_a_burial_doubles_nothing(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("lost"))
    await lay(broker, boxes.source, numbered(1))
    async with (
        wired(urlsplit(redis).netloc) as wire,
        open_broker(spec_of(url_of(wire.port)), no_secrets, LOOPBACK) as shaky,
        shaky.desk(boxes.desk()) as desk,
    ):
        (claim,) = await claim_some(desk, 1)
        wire.lose(b"claim")
        with pytest.raises(BrokerUnreachable):
            await desk.settle(claim, Buried(boxes.dead, claim.message))
        assert desk.holds(claim)
        await desk.settle(claim, Buried(boxes.dead, claim.message))
    assert await values(broker, boxes.dead) == [b"v0"]


async def test_appending_the_same_letter_again_does_nothing(broker: Broker) -> None:
    name = fresh_name("box")
    await broker.ensure(BoxSpec(name))
    publication = Publication(name, Message(None, b"x"), Place("elsewhere", 3, 17))
    for _ in range(2):
        await broker.append([publication])
    assert await values(broker, name) == [b"x"]


async def test_a_server_out_of_memory_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with own_redis(tmp_path) as port:
        admin = Redis(host=HERE, port=port)
        async with open_broker(spec_of(url_of(port)), no_secrets, LOOPBACK) as broker:
            boxes = await make_boxes(broker, "orders")
            await lay(broker, boxes.source, numbered(1))
            async with broker.desk(boxes.desk()) as desk:
                (claim,) = await claim_some(desk, 1)
                await admin.config_set("maxmemory", "1")
                with pytest.raises(BoxRefused):
                    await desk.settle(claim, Buried(boxes.dead, claim.message))
                assert desk.holds(claim)
                await admin.config_set("maxmemory", "0")
                await desk.settle(claim, Buried(boxes.dead, claim.message))
            assert await values(broker, boxes.dead) == [b"v0"]
        await admin.aclose()


async def test_trimmed_messages_are_acknowledged_and_counted(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("trim"))
    await lay(broker, boxes.source, numbered(3))
    async with broker.desk(boxes.desk()) as desk:
        assert len(await claim_some(desk, 3)) == 3
    await client.xtrim(boxes.source, maxlen=1, approximate=False)
    async with broker.desk(boxes.desk()) as desk:
        (left,) = await claim_some(desk, 1)
        assert left.message.value == b"v2"
        assert desk.trimmed == 2  # type: ignore[attr-defined]
        await desk.settle(left, Delivered())
    assert (await client.xpending(boxes.source, boxes.group))["pending"] == 0


async def test_an_abandoned_message_is_taken_over_and_the_sleeper_is_fenced(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("lease"))
    await lay(broker, boxes.source, numbered(2))
    async with broker.desk(boxes.desk("pod-0")) as sleeper:
        first, second = await claim_some(sleeper, 2)
        await sleeper.settle(second, Parked(second.message, 0))
        (parked,) = await claim_some(sleeper, 1)
        assert parked.parked
        sleeper._beating.cancel()  # type: ignore[attr-defined]  # it sleeps: its leases are not prolonged
        await client.xclaim(boxes.source, boxes.group, "pod-0", 0, [first.place.id], idle=hands.LEASE + 1, justid=True)
        await client.zadd(f"{{{boxes.retry}}}.due", {parked.place.id: 0})  # its lease ran out
        async with broker.desk(boxes.desk("pod-1")) as heir:
            taken = await claim_some(heir, 2)
            assert {claim.message.value for claim in taken} == {b"v0", b"v1"}
            for claim in (first, parked):
                with pytest.raises(Fenced):
                    await sleeper.settle(claim, Buried(boxes.dead, claim.message))
                assert not sleeper.holds(claim)
            for claim in taken:
                await heir.settle(claim, Delivered())
    assert await values(broker, boxes.dead) == []


async def test_what_a_killed_courier_held_comes_back_to_its_name_at_once(redis: str, broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("again"))
    await lay(broker, boxes.source, numbered(3))
    async with open_broker(spec_of(redis), no_secrets, LOOPBACK) as killed:
        desk = killed.desk(boxes.desk())
        opened = await desk.__aenter__()
        claims = await claim_some(opened, 3)
        await opened.settle(claims[0], Parked(claims[0].message, 0))
        assert len(await claim_some(opened, 1)) == 1
        async with broker.desk(boxes.desk()) as again:
            found = await claim_some(again, 3)
            assert {claim.message.value for claim in found} == {b"v0", b"v1", b"v2"}
            for claim in found:
                await again.settle(claim, Delivered())
        await desk.__aexit__(None, None, None)
    async with broker.desk(boxes.desk()) as again:
        assert await again.claim(1) == []


async def test_a_source_deleted_under_the_desk_is_read_again_when_it_comes_back(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("gone"))
    async with broker.desk(boxes.desk()) as desk:
        await client.delete(boxes.source)
        deadline = time.monotonic() + PATIENCE
        while not await client.exists(boxes.source):
            assert time.monotonic() < deadline
            assert await desk.claim(1) == []
        await lay(broker, boxes.source, numbered(1))
        (claim,) = await claim_some(desk, 1)
        await desk.settle(claim, Delivered())


async def test_a_cancelled_wait_ends(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("cancel"))
    async with broker.desk(boxes.desk()) as desk:
        for pause in (0.0, 0.01, 0.2):
            waiting = asyncio.create_task(desk.claim(1))
            await asyncio.sleep(pause)
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=PATIENCE)
            assert waiting.cancelled()
        await lay(broker, boxes.source, numbered(1))
        (claim,) = await claim_some(desk, 1)
        await desk.settle(claim, Delivered())


async def test_a_silent_server_is_unreachable_and_a_wait_in_it_can_be_cancelled(redis: str) -> None:
    async with (
        wired(urlsplit(redis).netloc) as wire,
        open_broker(spec_of(url_of(wire.port)), no_secrets, LOOPBACK) as broker,
    ):
        await broker.server()
        wire.silent = True
        waiting = asyncio.create_task(broker.server())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=PATIENCE)
        assert waiting.cancelled()
        with pytest.raises(BrokerUnreachable):
            await broker.server()
        wire.silent = False
        assert (await broker.server()).kind == "Redis"


async def test_a_key_of_another_kind_is_a_conflict(broker: Broker, client: Redis) -> None:
    name = fresh_name("list")
    await client.rpush(name, "x")
    with pytest.raises(BoxConflict):
        await broker.ensure(BoxSpec(name))


async def test_a_corrupt_ledger_is_said_and_never_taken_for_an_empty_one(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("corrupt"))
    await client.hset(boxes.ledger, "tally/uid-1/0", b"\x01nonsense")
    with pytest.raises(LedgerCorrupt):
        async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1"):
            pass
    registers = broker.registers()
    assert isinstance((await registers.sweep([boxes.watched], now()))[boxes.dead], LedgerCorrupt)


async def test_a_dropped_queue_leaves_no_key(broker: Broker, client: Redis) -> None:
    source = fresh_name("drop")
    boxes = await make_boxes(broker, source)
    await lay(broker, boxes.dead, numbered(4))
    letters = await contents(broker, boxes.dead)
    offsets = [one.place.offset for one in letters]
    async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        parks = [Publication(boxes.retry, one.message, one.place, due_at=0) for one in letters[:1]]
        settled = {Why.Replayed: offsets[:1], Why.Archived: offsets[1:2]}
        await mover.commit(Step(tally_of(letters), parks, settled, selected=offsets))
    await broker.drop([boxes.source, boxes.dead, boxes.retry, boxes.ledger, boxes.target])
    assert [key async for key in client.scan_iter(f"*{source}*")] == []


async def test_names_without_and_with_a_hash_tag_keep_their_keys_together(broker: Broker, client: Redis) -> None:
    for name in (fresh_name("plain"), f"{{{fresh_name('tagged')}}}.billing.dlq"):
        boxes = await make_boxes(broker, name)
        await lay(broker, boxes.dead, numbered(1))
        slots = {
            key_slot(key)
            async for key in client.scan_iter(f"*{name.strip('{').split('}')[0]}*dlq*")
            if not key.endswith((b".ledger", b".retry"))
        }
        assert len(slots) == 1


async def test_an_acl_user_sees_what_it_may(tmp_path: Path) -> None:
    with own_redis(tmp_path) as port:
        admin = Redis(host=HERE, port=port)
        await admin.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info", "+client")
        await admin.execute_command("CONFIG", "SET", "requirepass", "other")
        login = {"username": b"reader", "password": b"secret\n"}
        spec = BrokerConnectionSpec.model_validate({"redis": {"url": url_of(port), "secretRef": {"name": "user"}}})
        async with open_broker(spec, lambda _, key: login[key], LOOPBACK) as broker:
            assert (await broker.server()).id == f"{HERE}:{port}/0"
            with pytest.raises(NotAuthorised):
                await broker.ensure(BoxSpec("orders"))
        login["password"] = b"wrong"
        async with open_broker(spec, lambda _, key: login[key], LOOPBACK) as broker:
            with pytest.raises(AuthenticationFailed) as refused:
                await broker.server()
            assert "wrong" not in str(refused.value)
            login["password"] = b"secret"
            assert (await broker.server()).kind == "Redis"  # read again at the next connection
        async with open_broker(spec_of(url_of(port)), no_secrets, LOOPBACK) as broker:
            with pytest.raises(AuthenticationFailed):
                await broker.server()
        await admin.aclose()


async def test_a_cluster_is_not_supported_yet(tmp_path: Path) -> None:
    with own_redis(tmp_path, "--cluster-enabled", "yes") as port:
        async with open_broker(spec_of(url_of(port)), no_secrets, LOOPBACK) as broker:
            with pytest.raises(NotSupported):
                await broker.server()
    cluster = {"redis": {"url": "redis://nowhere:6379", "mode": "Cluster"}}
    with pytest.raises(NotSupported):
        async with open_broker(BrokerConnectionSpec.model_validate(cluster), no_secrets):
            pass


async def test_a_forbidden_address_is_never_dialled(tmp_path: Path) -> None:
    with own_redis(tmp_path) as port:
        async with open_broker(spec_of(url_of(port)), no_secrets) as broker:
            with pytest.raises(BrokerUnreachable):
                await broker.server()


async def test_a_large_letter_is_moved_byte_for_byte(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("large"))
    await lay(broker, boxes.dead, [Message(b"\xff", bytes(range(256)) * (40 << 10), (("h", b"\xfe"),))])
    letters = await contents(broker, boxes.dead)
    async with broker.mover(boxes.dead, boxes.ledger, 0, "uid-1") as mover:
        settled = {Why.Replayed: [letters[0].place.offset]}
        await mover.commit(Step(tally_of(letters), republish(boxes.target, letters), settled))
    (found,) = await contents(broker, boxes.target)
    assert (found.message.key, found.message.headers) == (b"\xff", (("h", b"\xfe"),))
    assert found.message.value == bytes(range(256)) * (40 << 10)
    await broker.drop([boxes.target])
