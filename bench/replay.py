"""A whole replay against the bare broker doing the same work, and a preview against a replay, on a real Kafka.

ours   the replayer: window, selection, dialect, hygiene, headers, publication, settlement, tally
peer   the same letters through the same mover, bytes untouched: what the broker alone costs

python -m bench.replay [--letters 100000] [--rounds 3]
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid

from deadletter.brokers.base import Broker
from deadletter.brokers.connect import open_broker
from deadletter.brokers.values import BoxSpec, Publication, Step
from deadletter.core.tallies import Span, Tally, Why
from tests.bed import beds
from tests.workers.replaying import Scene, letter

PARTITIONS = 4
VALUE = b"x" * 1_024
ANYWHERE = ("0.0.0.0/0", "::/0")
STEP = 2_000
GOAL = 1 / 1.5
PREVIEW_GOAL = 2.0


async def stage(broker: Broker, told: dict, letters: int) -> Scene:
    """A dead box with letters of 1 KiB, made for one run."""
    scene = Scene(broker, f"bench-{uuid.uuid4().hex[:8]}", told, PARTITIONS)
    await broker.ensure(BoxSpec(scene.name, partitions=PARTITIONS))
    await broker.ensure(BoxSpec(scene.boxes.dead, partitions=PARTITIONS, retention_ms=-1))
    share = letters // PARTITIONS
    for partition in range(PARTITIONS):
        for first in range(0, share, 1_000):
            batch = [letter(number, scene.name) for number in range(first, min(first + 1_000, share))]
            for message in batch:
                message.value = VALUE
            await scene.bury(*batch, partition=partition)
    return scene


async def bare(scene: Scene) -> None:
    """Every partition through its mover, in steps of the same size."""

    async def move(span: Span) -> None:
        boxes = scene.boxes
        async with scene.broker.mover(boxes.dead, boxes.ledger, span.partition, "bare") as mover:
            held = []
            async for batch in scene.broker.read(boxes.dead, [span]):
                held += batch
                while len(held) >= STEP:
                    await commit(mover, span, held[:STEP])
                    held = held[STEP:]
            if held:
                await commit(mover, span, held)

    async def commit(mover, span: Span, taken: list) -> None:
        to = [Publication(scene.name, one.message, one.place, one.place.partition) for one in taken]
        offsets = [one.place.offset for one in taken]
        await mover.commit(Step(Tally(span, 0, offsets[-1] + 1), to, {Why.Replayed: offsets}))

    await asyncio.gather(*(move(span) for span in await scene.broker.window(scene.boxes.dead)))


async def timed(work) -> float:
    """Seconds it took."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def measure(address: str, letters: int, rounds: int) -> dict[str, list[float]]:
    """Letters a second of each, interleaved."""
    told = {"kafka": {"bootstrapServers": [address]}}
    rates: dict[str, list[float]] = {"replay": [], "preview": [], "bare": []}
    connection = Scene(None, connection=told).assignment().broker
    async with open_broker(connection, lambda *_: b"", ANYWHERE) as broker:
        for number in range(rounds):
            ours, peer = await stage(broker, told, letters), await stage(broker, told, letters)
            rates["preview"].append(letters / await timed(ours.replay("dry", mode="DryRun")))
            rates["replay"].append(letters / await timed(ours.replay()))
            rates["bare"].append(letters / await timed(bare(peer)))
            print(f"round {number + 1} of {rounds}", {k: int(v[-1]) for k, v in rates.items()}, file=sys.stderr)
            await broker.drop([ours.name, ours.boxes.dead, peer.name, peer.boxes.dead])
    return rates


def tell(name: str, ours: float, peer: str, value: float, goal: float) -> None:
    """One JSON line a result."""
    ratio = round(ours / value, 3)
    line = {"bench": name, "unit": "letters/s", "ours": round(ours), "peer": peer, "peer_value": round(value)}
    print(json.dumps(line | {"ratio": ratio, "goal": round(goal, 3), "met": ratio >= goal}), flush=True)


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    bed = beds.create()
    try:
        rates = asyncio.run(measure(bed.kafka(), options.letters, options.rounds))
    finally:
        bed.down()
    middle = {name: statistics.median(values) for name, values in rates.items()}
    tell("replay-whole", middle["replay"], "bare broker", middle["bare"], GOAL)
    tell("replay-preview", middle["preview"], "replay", middle["replay"], PREVIEW_GOAL)


if __name__ == "__main__":
    main()
