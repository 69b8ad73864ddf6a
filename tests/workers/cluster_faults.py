"""Faults of a Kafka of three brokers and of couriers on it, while messages are delivered and letters replayed."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.bed.kafka_cluster import GROUPS, IDS, TRANSACTIONS, KafkaCluster
from tests.workers import holdpoints
from tests.workers.cluster_work import TIMEOUT_S, Account, Size, Work
from tests.workers.http_service import until

Fault = Callable[[Work], Awaitable[None]]


async def rolling_kill(work: Work) -> None:
    """Each broker is killed and started again, one after the other."""
    await _roll(work, signal.SIGKILL)


async def rolling_restart(work: Work) -> None:
    """Each broker is stopped and started again, one after the other."""
    await _roll(work, signal.SIGTERM)


async def _roll(work: Work, sign: signal.Signals) -> None:
    async for _ in work.rounds():
        for id_ in IDS:
            await asyncio.to_thread(work.cluster.kill, id_, sign)
            await asyncio.to_thread(work.cluster.start, id_)
            await asyncio.to_thread(work.cluster.wait_in_sync)


async def two_of_three(work: Work) -> None:
    """Two brokers are killed at once: no write succeeds until one of them is back."""
    async for turn in work.rounds():
        victims = [id_ for id_ in IDS if id_ != IDS[turn % len(IDS)]]
        for id_ in victims:
            await asyncio.to_thread(work.cluster.kill, id_)
        for id_ in victims:
            work.cluster.launch(id_)
        await asyncio.to_thread(work.cluster.wait_in_sync)


async def emptied_disk(work: Work) -> None:
    """A broker is killed and comes back with an empty disk, to which the others replicate again."""
    async for turn in work.rounds():
        id_ = IDS[turn % len(IDS)]
        await asyncio.to_thread(work.cluster.kill, id_)
        await asyncio.to_thread(work.cluster.empty_disk, id_)
        await asyncio.to_thread(work.cluster.start, id_)
        await asyncio.to_thread(work.cluster.wait_in_sync)


async def removed_coordinator(work: Work) -> None:
    """The coordinator of the Replay's transactions is down until the Replay continues without it."""
    async for _ in work.rounds():
        name = f"dlq.{work.scene.boxes.dead}.0"
        assert work.replay.process is not None
        assert work.replay.process.returncode is None, "the Replay ended before its coordinator was removed"
        id_ = await asyncio.to_thread(work.cluster.transaction_coordinator, name)
        await asyncio.to_thread(work.cluster.kill, id_)
        await until(lambda id_=id_: id_ not in work.cluster.living(), TIMEOUT_S)
        before = await work.replayed()
        await work.until_replayed(before + 50)
        assert await asyncio.to_thread(work.cluster.transaction_coordinator, name) != id_
        await asyncio.to_thread(work.cluster.start, id_)
        await asyncio.to_thread(work.cluster.wait_in_sync)


async def moved_leaders(work: Work) -> None:
    """All partitions and coordinators move to other brokers while courier and replayer have open transactions."""
    topics = (*work.topics, TRANSACTIONS, GROUPS)
    async for turn in work.rounds():
        holding = [work.pods[turn % len(work.pods)].folder, work.replay.folder]
        wanted = await asyncio.to_thread(work.cluster.prefer_leaders, *topics)
        try:
            await asyncio.gather(*(holdpoints.hold(folder) for folder in holding))
            await asyncio.to_thread(work.cluster.elect_leaders, wanted)
        finally:
            for folder in holding:
                holdpoints.release(folder)


async def stopped_courier(work: Work) -> None:
    """A courier is suspended until its group continues without it; resumed, it finds its partitions taken."""
    async for turn in work.rounds():
        await _until_members(work, len(work.pods))
        process = work.pods[turn % len(work.pods)].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            await _until_members(work, len(work.pods) - 1)
            before = work.shop.deliveries.refresh()
            await until(lambda before=before: work.shop.deliveries.refresh() > before + 50, TIMEOUT_S)
        finally:
            process.send_signal(signal.SIGCONT)


async def _until_members(work: Work, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await work.members() != count:
            await asyncio.sleep(0.2)


FAULTS: dict[str, Fault] = {
    "rolling-kill": rolling_kill,
    "rolling-restart": rolling_restart,
    "two-of-three": two_of_three,
    "emptied-disk": emptied_disk,
    "removed-coordinator": removed_coordinator,
    "moved-leaders": moved_leaders,
    "stopped-courier": stopped_courier,
}


async def run(name: str, cluster: KafkaCluster, folder: Path, size: Size) -> Account:
    """Run work of this size, cause the fault, and return the account of the work."""
    work = Work(cluster, folder, size, more_pods=1 if FAULTS[name] is stopped_courier else 0)
    try:
        await work.prepare()
        await work.start()
        await FAULTS[name](work)
        return await work.account(name)
    finally:
        await work.end()
