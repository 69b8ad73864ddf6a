"""The bed at the command line: up, down, status, and run, which runs a command within a bed of its own."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.bed import (
    beds,
    binaries,
    caches,
    image,
    kafka,
    kind,
    leftovers,
    network,
    node,
    pause,
    preflight,
    processes,
    tools,
)
from tests.bed.processes import BedError
from tests.dialects import libraries

STANDING = os.environ.get("DLQ_BED_NAME", "main")
PARTS = ("redis", "kafka", "cluster")
EXTRA = ("kafka-cluster", "redis-sentinel")
CHOICE = (
    f"Any of {', '.join((*PARTS, *EXTRA))}; without names {', '.join(PARTS)}. "
    "kafka-cluster is a Kafka of three brokers, redis-sentinel a Redis primary with a replica and three Sentinels."
)
# Within the bed nothing can be installed any more: what a test needs is here.
TOOLS = (
    *("redis-server", "redis-cli", "kcat", "java", "openssl"), *node.TOOLS, *image.TOOLS,
    *("promtool", "prometheus", "nginx", "faketime", "lua5.1"),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Do one thing; an objection is one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tests.bed", description=__doc__)
    parser.add_argument("--provider", choices=("processes", "kind"), default="processes")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "start"):
        verbs.add_parser(verb).add_argument("parts", nargs="*", default=list(PARTS), help=CHOICE)
    for verb in ("down", "status", "image", "prepare"):
        verbs.add_parser(verb)
    verbs.add_parser("run").add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    # SIGINT too: a shell that starts us in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _do(asked)
    except BedError as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bed: interrupted", file=sys.stderr)
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _do(asked: argparse.Namespace) -> int:
    if asked.provider == "kind" and asked.verb != "run":
        return kind.do(asked.verb)
    match asked.verb:
        case "up":
            return up(asked.parts)
        case "start":
            return start(asked.parts)
        case "run":
            return run([word for word in asked.command if word != "--"], on_kind=asked.provider == "kind")
        case "prepare":
            prepare()
        case "image":
            print(f"{image.name()} {image.archive()}")
        case "down":
            down()
        case "status":
            return status()
    return 0


def prepare() -> Path:
    """Everything that is made once, while there still is a way to the outside; the archive of our image."""
    preflight.root("The test bed")
    preflight.disk()
    tools.need(*TOOLS)
    kafka.jars()
    for name in (*binaries.CONTROL, *binaries.NODE, "kind"):
        binaries.path(name)
    pause.archive()
    libraries.prepare()
    image.previous_archive()
    return image.archive()


def up(parts: Sequence[str]) -> int:
    """Bring the standing bed up, or what is missing of it."""
    unknown = sorted(set(parts) - {*PARTS, *EXTRA})
    if unknown:
        raise BedError(f"No part is called {', '.join(unknown)}; there are {', '.join((*PARTS, *EXTRA))}.")
    archive = prepare()
    beds.sweep()
    bed = _standing()
    bed.take_image(archive)
    caches.say(f"starting {', '.join(parts)} (about 30 s)")
    done = subprocess.run(
        network.inside(bed.directory, [sys.executable, "-m", "tests.bed", "start", *parts]), check=False
    )
    if done.returncode != 0:
        caches.say(f"the logs are in {bed.directory / 'logs'}; `make bed-down` clears all away")
    return done.returncode


def _standing() -> beds.Bed:
    bed = beds.Bed(beds.home() / STANDING)
    if bed.directory.exists() and network.exists(bed.directory):
        return bed
    if bed.directory.exists():
        bed.down()
    return beds.create(STANDING, own_network=True, owned=False)


def start(parts: Sequence[str]) -> int:
    """Within the network of the standing bed: start parts and say where they are."""
    bed = beds.Bed(beds.home() / STANDING)
    if "redis" in parts:
        print(f"redis    {bed.redis()}")
    if "kafka" in parts:
        print(f"kafka    {bed.kafka()}")
    if "kafka-cluster" in parts:
        print(f"kafka-cluster   {bed.kafka_cluster().bootstrap}")
    if "redis-sentinel" in parts:
        watched = bed.redis_sentinel()
        print(f"redis-sentinel  {watched.url}, Sentinels {', '.join(watched.sentinels)}")
    if "cluster" in parts:
        cluster = bed.cluster()
        print(f"cluster  {cluster.server}\nimage    {cluster.image}")
        print(f"\nTo talk to it: {' '.join(network.inside(bed.directory, ['bash']))}")
        print(f"then:          export KUBECONFIG={cluster.kubeconfig}; {binaries.path('kubectl')} get pods -A")
    return 0


def run(command: Sequence[str], on_kind: bool = False) -> int:
    """Run a command within a bed of its own, which ends with it; the logs stay when the command failed."""
    if on_kind:
        preflight.docker()
    archive = prepare()
    beds.sweep()
    bed = beds.create(own_network=not on_kind)
    try:
        bed.take_kind(archive) if on_kind else bed.take_image(archive)
        words = network.inside(bed.directory, ["env", f"{processes.USED}={bed.directory}", *command])
        child = subprocess.Popen(words)
        code = _outcome(child)
        if code != 0:
            caches.say(f"logs of the bed: {beds.keep_logs(bed)}")
        return code
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        bed.down()


def _outcome(child: "subprocess.Popen[bytes]") -> int:
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
        raise


def down() -> None:
    """Take down the standing bed and every bed whose owner died."""
    beds.sweep()
    bed = beds.Bed(beds.home() / STANDING)
    if bed.directory.exists():
        bed.down()
        caches.say("the bed is down")
    else:
        caches.say("no bed is up")


def status() -> int:
    """Say what there is of any bed; sweep away what outlived its owner."""
    for bed in beds.sweep():
        print(f"{bed.directory.name}: its owner had died; cleared away")
    found = beds.every()
    for bed in found:
        _describe(bed)
    strays = leftovers.strays({network.name(bed.directory) for bed in found})
    print(*strays, sep="\n", end="\n" if strays else "")
    if not found and not strays:
        print("nothing left")
    return 0


def _describe(bed: beds.Bed) -> None:
    owner = bed.owner()
    kept = f"runs for process {owner.pid}" if owner else "stays until make bed-down"
    names = sorted(path.name for path in Path(bed.directory / "pids").glob("*") if _lives(path))
    print(f"{bed.directory.name}: {kept}; processes: {', '.join(names) or 'none'}")
    for line in leftovers.of(bed.directory):
        print(f"  {line}")


def _lives(path: Path) -> bool:
    process = processes.read(path)
    return process is not None and process.is_alive()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
