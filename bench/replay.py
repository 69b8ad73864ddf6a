"""A Replay as users see it, from `kubectl apply` to Succeeded, beside the bare broker doing the same work.

job       a million letters of 1 KiB on 4 partitions through the Job's pod on a real node
bare      the same letters through the same mover in one process, bytes untouched: what the broker alone costs
start     a Replay of an empty box: operator, Job, image, interpreter, and the status at the end
preview   a DryRun beside a replay, both in one process

python -m bench.replay [--letters 1000000] [--small 400000] [--rounds 3]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable
from pathlib import Path

import uvloop

from bench.lines import line, progress, versus
from deadletter.brokers.contract import PartitionWriter
from deadletter.brokers.types import CommitBatch, Publication, StoredMessage
from deadletter.core.box_spec import BoxSpec
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.workers.process import tune_gc, tune_malloc
from tests.bed import beds, processes
from tests.bed.node import Cluster
from tests.demo import story
from tests.demo.stage import Stage
from tests.e2e.hauls import PARTITIONS, Haul
from tests.workers.replay_scene import Scene

VALUE = b"x" * 1_024
STEP = 2_000
ALLOWED = 1.5  # times the bare broker
FLAT = 0.9  # memory at 10 % of the way over memory at its end
PREVIEW = 2.0


async def bare(scene: Scene, target: str) -> None:
    """Every partition through its mover, in steps of the same size."""
    await scene.broker.ensure(BoxSpec(target, partitions=PARTITIONS))
    await asyncio.gather(*(move(scene, target, span) for span in await scene.broker.window(scene.boxes.dead)))


async def move(scene: Scene, target: str, span: Span) -> None:
    """One partition, to a target and a ledger of its own."""
    dead = scene.boxes.dead
    async with scene.broker.partition_writer(dead, f"{target}.ledger", span.partition, "bare") as mover:
        held: list[StoredMessage] = []
        async for batch in scene.broker.read(dead, [span]):
            held += batch
            while len(held) >= STEP:
                await commit(mover, target, span, held[:STEP])
                held = held[STEP:]
        if held:
            await commit(mover, target, span, held)


async def commit(mover: PartitionWriter, target: str, span: Span, taken: list[StoredMessage]) -> None:
    """One transaction."""
    to = [Publication(target, one.message, one.place, one.place.partition) for one in taken]
    offsets = [one.place.offset for one in taken]
    await mover.commit(CommitBatch(PartitionProgress(span, 0, offsets[-1] + 1), to, {SettledAs.Replayed: offsets}))


async def timed(work: Awaitable[object]) -> float:
    """Seconds it took."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def in_one_process(stage: Stage, address: str, letters: int, rounds: int) -> None:
    """Preview, replay and bare, interleaved, each round on letters of its own."""
    rates: dict[str, list[float]] = {"preview": [], "replay": [], "bare": []}
    for number in range(rounds):
        haul = Haul(stage, address)
        await haul.fill(letters // PARTITIONS, VALUE)
        async with haul.opened() as scene:
            rates["preview"].append(letters / await timed(scene.replay("dry", mode="DryRun")))
            rates["bare"].append(letters / await timed(bare(scene, f"{haul.name}.bare")))
            rates["replay"].append(letters / await timed(scene.replay()))
            await scene.broker.delete([haul.name, scene.boxes.dead, f"{haul.name}.bare"])
        progress(f"round {number + 1} of {rounds}: { {name: int(found[-1]) for name, found in rates.items()} }")
    middle = {name: statistics.median(found) for name, found in rates.items()}
    versus("replay-process", "letters/s", middle["replay"], "bare broker", middle["bare"], round(1 / ALLOWED, 3))
    versus("replay-preview", "letters/s", middle["preview"], "replay", middle["replay"], PREVIEW)


async def start(stage: Stage, address: str, rounds: int) -> float:
    """Seconds of a Replay that has nothing to do."""
    haul = Haul(stage, address)
    await haul.fill(0)
    await asyncio.to_thread(haul.watch)
    seconds = []
    for number in range(rounds):
        begun = time.perf_counter()
        await asyncio.to_thread(haul.replay, f"empty-{number}")
        await asyncio.to_thread(haul.wait, f"empty-{number}")
        seconds.append(time.perf_counter() - begun)
        progress(f"an empty Replay: {seconds[-1]:.1f} s")
    return statistics.median(seconds)


async def sample(haul: Haul, done: asyncio.Future[None]) -> list[tuple[int, float]]:
    """Letters sent and MiB held by the replayer, until it ends."""
    container = await asyncio.to_thread(haul.container)
    status = Path("/proc", str(await asyncio.to_thread(haul.pid, container)), "status")
    samples = []
    async with haul.opened() as scene:
        while not done.done():
            sent = sum(span.end for span in await scene.broker.window(haul.name))
            text = status.read_text() if status.exists() else ""
            if "VmRSS:" not in text:
                break
            samples.append((sent, int(text.split("VmRSS:")[1].split()[0]) / 1_024))
            await asyncio.sleep(0.5)
    return samples


async def alone_on(haul: Haul) -> float:
    """Seconds of the bare broker, to a target of its own that goes again."""
    target = f"{haul.name}.bare"
    async with haul.opened() as scene:
        took = await timed(bare(scene, target))
        await scene.broker.delete([target, f"{target}.ledger"])
    return took


async def as_job(stage: Stage, address: str, letters: int, rounds: int) -> None:
    """The whole way; before and after it the bare broker over the same letters."""
    overhead = await start(stage, address, rounds)
    haul = Haul(stage, address)
    await haul.fill(letters // PARTITIONS, VALUE)
    await asyncio.to_thread(haul.watch)
    progress(f"{letters} letters lie there")
    alone = [await alone_on(haul)]
    begun = time.perf_counter()
    await asyncio.to_thread(haul.replay)
    done = asyncio.ensure_future(asyncio.to_thread(haul.wait))
    samples = await sample(haul, done)
    await done
    took = time.perf_counter() - begun
    assert stage.get("rply/haul")["status"]["replayed"] == letters
    alone.append(await alone_on(haul))
    progress(f"job {took:.1f} s, bare {alone[0]:.1f} and {alone[1]:.1f} s, start {overhead:.1f} s")
    bound = ALLOWED * statistics.mean(alone) + overhead
    line(f"replay-job-{letters}", "s", took, "1.5 x bare broker + start", bound, lower_is_better=True)
    early = next((held for sent, held in samples if sent >= letters // 10), samples[-1][1])
    line("replay-job-memory", "MiB", samples[-1][1], "at 10 %", early, FLAT, lower_is_better=True)


async def measure(cluster: Cluster, address: str, options: argparse.Namespace) -> None:
    """Both parts, in a namespace of their own."""
    story.install(cluster)
    stage = Stage(cluster, f"bench-{uuid.uuid4().hex[:6]}", out=sys.stderr)
    story.namespaces(cluster, stage.namespace)
    await as_job(stage, address, options.letters, options.rounds)
    await in_one_process(stage, address, options.small, options.rounds)


def main() -> int:
    """Measure and tell, within a bed that has a node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if processes.USED not in os.environ:
        again = [sys.executable, "-m", "bench.replay", *sys.argv[1:]]
        return subprocess.run([sys.executable, "-m", "tests.bed", "run", "--", *again], check=False).returncode
    bed = beds.Bed(Path(os.environ[processes.USED]))
    tune_gc()
    tune_malloc()
    uvloop.run(measure(bed.cluster(), bed.kafka(), options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
