"""Measure a Replay as users see it, from `kubectl apply` to Succeeded, against the bare broker doing the same work.

job       a million letters of 1 KiB on 4 partitions, replayed by the Job's pod on a real node
bare      the same letters through the same partition writer in one process, bytes unchanged: the cost of the broker
start     a Replay of an empty box: operator, Job, image, interpreter, and the final status
preview   a DryRun compared with a replay, both in one process

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
from deadletter.core.box_types import BoxSpec
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.workers.process import tune_gc, tune_malloc
from tests.bed import beds, processes
from tests.bed.node import Cluster
from tests.demo import story
from tests.demo.stage import Stage
from tests.e2e.cluster_replay import PARTITIONS, ClusterReplay
from tests.workers.replay_scene import Scene

VALUE = b"x" * 1_024
STEP = 2_000
MAX_OVERHEAD = 1.5  # times the bare broker
MIN_MEMORY_RATIO = 0.9  # memory after 10 % of the letters over memory at the end
MIN_PREVIEW_SPEEDUP = 2.0


async def run_bare_broker(scene: Scene, target: str) -> None:
    """Move every partition through its writer, in batches of the same size."""
    await scene.broker.ensure(BoxSpec(target, partitions=PARTITIONS))
    await asyncio.gather(*(move(scene, target, span) for span in await scene.broker.window(scene.boxes.dead)))


async def move(scene: Scene, target: str, span: Span) -> None:
    """Move one partition to a target with a ledger of its own."""
    dead = scene.boxes.dead
    async with scene.broker.partition_writer(dead, f"{target}.ledger", span.partition, "bare") as writer:
        held: list[StoredMessage] = []
        async for batch in scene.broker.read(dead, [span]):
            held += batch
            while len(held) >= STEP:
                await commit(writer, target, span, held[:STEP])
                held = held[STEP:]
        if held:
            await commit(writer, target, span, held)


async def commit(writer: PartitionWriter, target: str, span: Span, stored: list[StoredMessage]) -> None:
    """Publish and settle these letters in one transaction."""
    to = [Publication(target, one.message, one.place, one.place.partition) for one in stored]
    offsets = [one.place.offset for one in stored]
    await writer.commit(CommitBatch(PartitionProgress(span, 0, offsets[-1] + 1), to, {SettledAs.Replayed: offsets}))


async def timed(work: Awaitable[object]) -> float:
    """Await the work and return how many seconds it took."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def measure_in_one_process(stage: Stage, address: str, letters: int, rounds: int) -> None:
    """Measure preview, bare broker and replay in turn; each round has letters of its own."""
    rates: dict[str, list[float]] = {"preview": [], "replay": [], "bare": []}
    for number in range(rounds):
        load = ClusterReplay(stage, address)
        await load.fill(letters // PARTITIONS, VALUE)
        async with load.open_scene() as scene:
            rates["preview"].append(letters / await timed(scene.replay("dry", mode="DryRun")))
            rates["bare"].append(letters / await timed(run_bare_broker(scene, f"{load.name}.bare")))
            rates["replay"].append(letters / await timed(scene.replay()))
            await scene.broker.delete([load.name, scene.boxes.dead, f"{load.name}.bare"])
        progress(f"round {number + 1} of {rounds}: { {name: int(found[-1]) for name, found in rates.items()} }")
    middle = {name: statistics.median(found) for name, found in rates.items()}
    versus("replay-process", "letters/s", middle["replay"], "bare broker", middle["bare"], round(1 / MAX_OVERHEAD, 3))
    versus("replay-preview", "letters/s", middle["preview"], "replay", middle["replay"], MIN_PREVIEW_SPEEDUP)


async def measure_start(stage: Stage, address: str, rounds: int) -> float:
    """Return the median seconds of a Replay that has nothing to do."""
    load = ClusterReplay(stage, address)
    await load.fill(0)
    await asyncio.to_thread(load.create_queue)
    seconds = []
    for number in range(rounds):
        begun = time.perf_counter()
        await asyncio.to_thread(load.replay, f"empty-{number}")
        await asyncio.to_thread(load.wait, f"empty-{number}")
        seconds.append(time.perf_counter() - begun)
        progress(f"an empty Replay: {seconds[-1]:.1f} s")
    return statistics.median(seconds)


async def sample(load: ClusterReplay, done: asyncio.Future[None]) -> list[tuple[int, float]]:
    """Return pairs of letters sent and MiB of memory used by the replayer, sampled until it ends."""
    container = await asyncio.to_thread(load.container)
    status = Path("/proc", str(await asyncio.to_thread(load.pid, container)), "status")
    samples = []
    async with load.open_scene() as scene:
        while not done.done():
            sent = sum(span.end for span in await scene.broker.window(load.name))
            text = status.read_text() if status.exists() else ""
            if "VmRSS:" not in text:
                break
            samples.append((sent, int(text.split("VmRSS:")[1].split()[0]) / 1_024))
            await asyncio.sleep(0.5)
    return samples


async def measure_bare_broker(load: ClusterReplay) -> float:
    """Return the seconds of the bare broker, to a target that is deleted afterwards."""
    target = f"{load.name}.bare"
    async with load.open_scene() as scene:
        took = await timed(run_bare_broker(scene, target))
        await scene.broker.delete([target, f"{target}.ledger"])
    return took


async def measure_job(stage: Stage, address: str, letters: int, rounds: int) -> None:
    """Measure a whole Replay, and the bare broker on the same letters before and after it."""
    overhead = await measure_start(stage, address, rounds)
    load = ClusterReplay(stage, address)
    await load.fill(letters // PARTITIONS, VALUE)
    await asyncio.to_thread(load.create_queue)
    progress(f"{letters} letters in the dead box")
    alone = [await measure_bare_broker(load)]
    begun = time.perf_counter()
    await asyncio.to_thread(load.replay)
    done = asyncio.ensure_future(asyncio.to_thread(load.wait))
    samples = await sample(load, done)
    await done
    took = time.perf_counter() - begun
    assert stage.get("rply/load")["status"]["replayed"] == letters
    alone.append(await measure_bare_broker(load))
    progress(f"job {took:.1f} s, bare {alone[0]:.1f} and {alone[1]:.1f} s, start {overhead:.1f} s")
    bound = MAX_OVERHEAD * statistics.mean(alone) + overhead
    line(f"replay-job-{letters}", "s", took, "1.5 x bare broker + start", bound, lower_is_better=True)
    early = next((held for sent, held in samples if sent >= letters // 10), samples[-1][1])
    line("replay-job-memory", "MiB", samples[-1][1], "at 10 %", early, MIN_MEMORY_RATIO, lower_is_better=True)


async def measure(cluster: Cluster, address: str, options: argparse.Namespace) -> None:
    """Measure both parts in a new namespace."""
    story.install(cluster)
    stage = Stage(cluster, f"bench-{uuid.uuid4().hex[:6]}", out=sys.stderr)
    story.create_namespaces(cluster, stage.namespace)
    await measure_job(stage, address, options.letters, options.rounds)
    await measure_in_one_process(stage, address, options.small, options.rounds)


def main() -> int:
    """Measure and print the results, in a test bed that has a node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if processes.BED_VARIABLE not in os.environ:
        again = [sys.executable, "-m", "bench.replay", *sys.argv[1:]]
        return subprocess.run([sys.executable, "-m", "tests.bed", "run", "--", *again], check=False).returncode
    bed = beds.Bed(Path(os.environ[processes.BED_VARIABLE]))
    tune_gc()
    tune_malloc()
    uvloop.run(measure(bed.cluster(), bed.kafka(), options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
