"""Sweeps of dead streams: counts grow with the stream and start again after a deletion."""

from redis.asyncio import Redis

from deadletter.brokers.contract import BoxMonitor, Broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import Buried, Parked
from deadletter.core.box_types import BoxStats
from deadletter.core.headers import add_headers
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.letters import Category, Envelope, Failure, Message
from deadletter.wall_clock import now_ms
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import Boxes, claim_some, make_boxes, numbered_messages, publish_all, read_all

BROKER = "redis"


def failed_message(kind: str, failed_at: int) -> Message:
    failure = Failure(kind, f"{kind} at 17", Category.Network)
    return add_headers(Message(None, b"{}"), Envelope(attempts=3, failed_at=failed_at, failure=failure))


async def sweep_one(monitor: BoxMonitor, boxes: Boxes) -> BoxStats:
    found = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
    assert not isinstance(found, BrokerError), found
    return found


async def test_groups_follow_added_and_deleted_letters(broker: Broker, client: Redis) -> None:
    boxes = await make_boxes(broker, fresh_name("groups"))
    monitor = broker.monitor()
    await publish_all(broker, boxes.dead, [failed_message("Timeout", 1_000), failed_message("Reset", 2_000)])
    stats = await sweep_one(monitor, boxes)
    assert (stats.depth, stats.oldest) == (2, 1_000)
    await publish_all(broker, boxes.dead, [failed_message("Reset", 3_000)])
    stats = await sweep_one(monitor, boxes)
    assert [(group.error_type, group.letters) for group in stats.groups] == [("Reset", 2), ("Timeout", 1)]
    assert (stats.groups[0].first_seen, stats.groups[0].last_seen) == (2_000, 3_000)
    assert stats.groups[0].category == "Network"
    first = (await read_all(broker, boxes.dead))[0]
    await client.xdel(boxes.dead, first.place.id)
    stats = await sweep_one(monitor, boxes)
    assert [(group.error_type, group.letters) for group in stats.groups] == [("Reset", 2)]
    assert (stats.depth, stats.oldest) == (2, 2_000)
    assert await sweep_one(monitor, boxes) == stats
    await client.xtrim(boxes.dead, maxlen=0, approximate=False)
    assert await sweep_one(monitor, boxes) == BoxStats(0, None)


async def test_further_groups_are_counted_as_other(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("many"))
    kinds = [f"Error{chr(65 + n // 26)}{chr(65 + n % 26)}" for n in range(130)]
    await publish_all(broker, boxes.dead, [failed_message(kind, 1_000) for kind in kinds])
    groups = (await sweep_one(broker.monitor(), boxes)).groups
    assert len(groups) == 101
    assert (groups[-1].fingerprint, groups[-1].letters) == ("other", 30)


async def test_parked_letters_and_recent_statuses_are_swept(broker: Broker) -> None:
    boxes = await make_boxes(broker, fresh_name("statuses"))
    monitor = broker.monitor()
    await publish_all(broker, boxes.source, numbered_messages(2))
    async with broker.subscribe(boxes.subscription()) as subscription:
        first, second = await claim_some(subscription, 2)
        await subscription.settle(first, Parked(first.message, now_ms() + 3_600_000))
        await subscription.settle(second, Buried(boxes.dead, second.message))
        await subscription.report_status(WorkerStatus("pod-0", at=now_ms()))
        await subscription.report_status(WorkerStatus("pod-1", at=now_ms() - 91_000))
        stats = await sweep_one(monitor, boxes)
        assert (stats.parked, stats.depth) == (1, 1)
        assert [status.pod for status in stats.couriers] == ["pod-0"]
    assert (await sweep_one(monitor, boxes)).couriers == ()


async def test_many_boxes_are_swept_at_once(broker: Broker) -> None:
    queues = [await make_boxes(broker, fresh_name("sweep")) for _ in range(5)]
    monitor = broker.monitor()
    await monitor.sweep([boxes.monitored for boxes in queues], now_ms())
    found = await monitor.sweep([boxes.monitored for boxes in queues], now_ms())
    assert {boxes.dead for boxes in queues} == set(found)
    assert all(isinstance(stats, BoxStats) for stats in found.values())
