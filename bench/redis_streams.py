"""Measure Redis: a replay compared with pipelined XADD of the same entries; sweep and letter index of dead streams.

python -m bench.redis_streams [--letters 50000] [--rounds 3] [--queues 500]
"""

import argparse
import asyncio
import statistics
import time
import uuid

from redis.asyncio import Redis

from bench.brokers import STEP, connect, fill, interleaved, letter, longest_block_ms, replay
from bench.lines import bound, versus
from deadletter.brokers.contract import Broker
from deadletter.brokers.redis.entries import to_fields
from deadletter.brokers.types import MonitoredBox
from deadletter.core.box_types import BoxSpec
from tests.bed import beds


def new_stream_name() -> str:
    """Return an unused stream name with a hash tag."""
    return f"{{bench-{uuid.uuid4().hex[:8]}}}"


async def xadd(url: str, letters: int) -> float:
    """Return the seconds of XADD alone, in pipelines as long as our batches."""
    name = new_stream_name()
    async with Redis.from_url(url) as client:
        begun = time.monotonic()
        for first in range(0, letters, STEP):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, min(first + STEP, letters)):
                fields = to_fields(letter(number))
                pipeline.xadd(name, dict(zip(fields[::2], fields[1::2], strict=True)))
            await pipeline.execute()
        took = time.monotonic() - begun
        await client.delete(name)
    return took


async def ours(broker: Broker, letters: int) -> float:
    """Return the seconds of a replay of as many letters: read, publish, settle, count."""
    dead = new_stream_name()
    await broker.ensure(BoxSpec(dead))
    await broker.ensure(BoxSpec(f"{dead}.target"))
    await fill(broker, dead, letters, 1)
    took = await replay(broker, dead, f"{dead}.ledger", f"{dead}.target", 1)
    await broker.delete([dead, f"{dead}.target", f"{dead}.ledger"])
    return took


async def letter_index(broker: Broker, letters: int) -> None:
    """Build the letter index of a stream, and measure how long that blocks the event loop."""
    dead = new_stream_name()
    await broker.ensure(BoxSpec(dead))
    await fill(broker, dead, letters, 1)
    monitor = broker.monitor()
    worst = asyncio.ensure_future(longest_block_ms())
    begun = time.monotonic()
    await monitor.sweep([MonitoredBox(dead, f"{dead}.ledger")], 0)
    versus("redis-register", "letters/s", letters / (time.monotonic() - begun), "bound", 20_000, 1.0)
    worst.cancel()
    bound("redis-register-hold", "ms", await worst, 10)
    await broker.delete([dead])


async def sweep(broker: Broker, queues: int) -> None:
    """Measure the sweep of many queues in which nothing changed."""
    names = [new_stream_name() for _ in range(queues)]
    for name in names:
        await broker.ensure(BoxSpec(name))
    monitor, seconds = broker.monitor(), []
    for _ in range(4):
        begun = time.monotonic()
        await monitor.sweep([MonitoredBox(name, f"{name}.ledger") for name in names], 0)
        seconds.append(time.monotonic() - begun)
    bound(f"redis-sweep-{queues}", "s", statistics.median(seconds[1:]), 5.0)
    await broker.delete(names)


async def main(letters: int, rounds: int, queues: int) -> None:
    """Measure every part on a test bed of its own."""
    bed = beds.create()
    try:
        url = await asyncio.to_thread(bed.redis)
        async with connect(redis={"url": url}) as broker:
            took = await interleaved(
                rounds, {"ours": lambda: ours(broker, letters), "xadd": lambda: xadd(url, letters)}
            )
            rate = {name: letters / seconds for name, seconds in took.items()}
            versus("redis-replay", "letters/s", rate["ours"], "pipelined XADD", rate["xadd"], 0.5)
            await letter_index(broker, min(letters, 40_000))
            await sweep(broker, queues)
    finally:
        bed.down()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queues", type=int, default=500)
    options = parser.parse_args()
    asyncio.run(main(options.letters, options.rounds, options.queues))
