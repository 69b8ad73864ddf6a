"""Command line of the test bed: up, down, status, and run, which runs a command inside a bed of its own."""

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

STANDING_BED = os.environ.get("DLQ_BED_NAME", "main")
PARTS = ("redis", "kafka", "cluster")
EXTRA = ("kafka-cluster", "redis-sentinel")
CHOICE = (
    f"Any of {', '.join((*PARTS, *EXTRA))}; without names {', '.join(PARTS)}. "
    "kafka-cluster is a Kafka of three brokers, redis-sentinel a Redis primary with a replica and three Sentinels."
)
# Installed before a bed starts, because inside its network no package can be downloaded.
TOOLS = (
    *("redis-server", "redis-cli", "kcat", "java", "openssl"), *node.TOOLS, *image.TOOLS,
    *("promtool", "prometheus", "nginx", "faketime", "lua5.1"),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run one verb; an error is printed as one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tests.bed", description=__doc__)
    parser.add_argument("--provider", choices=("processes", "kind"), default="processes")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "start"):
        verbs.add_parser(verb).add_argument("parts", nargs="*", default=list(PARTS), help=CHOICE)
    for verb in ("down", "status", "image", "prepare"):
        verbs.add_parser(verb)
    verbs.add_parser("run").add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    # SIGINT too: a shell that starts this process in the background ignores it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _run_verb(options)
    except BedError as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bed: interrupted", file=sys.stderr)
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run_verb(options: argparse.Namespace) -> int:
    if options.provider == "kind" and options.verb != "run":
        return kind.run_verb(options.verb)
    match options.verb:
        case "up":
            return up(options.parts)
        case "start":
            return start(options.parts)
        case "run":
            return run([word for word in options.command if word != "--"], on_kind=options.provider == "kind")
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
    """Build and download everything that needs the internet; return the archive of our image."""
    preflight.require_root("The test bed")
    preflight.require_disk_space()
    tools.need(*TOOLS)
    kafka.jars()
    for name in (*binaries.CONTROL, *binaries.NODE, "kind"):
        binaries.path(name)
    pause.archive()
    libraries.prepare()
    image.previous_archive()
    return image.archive()


def up(parts: Sequence[str]) -> int:
    """Start the standing bed, or the parts of it that do not run."""
    unknown = sorted(set(parts) - {*PARTS, *EXTRA})
    if unknown:
        raise BedError(f"Unknown part {', '.join(unknown)}. Choose from {', '.join((*PARTS, *EXTRA))}.")
    archive = prepare()
    beds.remove_stale()
    bed = _standing()
    bed.keep_image(archive)
    caches.print_progress(f"starting {', '.join(parts)} (about 30 s)")
    result = subprocess.run(
        network.command_inside(bed.directory, [sys.executable, "-m", "tests.bed", "start", *parts]), check=False
    )
    if result.returncode != 0:
        caches.print_progress(f"the logs are in {bed.directory / 'logs'}; `make bed-down` removes everything")
    return result.returncode


def _standing() -> beds.Bed:
    bed = beds.Bed(beds.beds_directory() / STANDING_BED)
    if bed.directory.exists() and network.exists(bed.directory):
        return bed
    if bed.directory.exists():
        bed.down()
    return beds.create(STANDING_BED, own_network=True, owned=False)


def start(parts: Sequence[str]) -> int:
    """Start parts inside the network of the standing bed and print their addresses."""
    bed = beds.Bed(beds.beds_directory() / STANDING_BED)
    if "redis" in parts:
        print(f"redis    {bed.redis()}")
    if "kafka" in parts:
        print(f"kafka    {bed.kafka()}")
    if "kafka-cluster" in parts:
        print(f"kafka-cluster   {bed.kafka_cluster().bootstrap}")
    if "redis-sentinel" in parts:
        sentinel = bed.redis_sentinel()
        print(f"redis-sentinel  {sentinel.url}, Sentinels {', '.join(sentinel.sentinels)}")
    if "cluster" in parts:
        cluster = bed.cluster()
        print(f"cluster  {cluster.server}\nimage    {cluster.image}")
        print(f"\nTo use it: {' '.join(network.command_inside(bed.directory, ['bash']))}")
        print(f"then:      export KUBECONFIG={cluster.kubeconfig}; {binaries.path('kubectl')} get pods -A")
    return 0


def run(command: Sequence[str], on_kind: bool = False) -> int:
    """Run a command inside a bed that ends with it; keep the logs if the command failed."""
    if on_kind:
        preflight.require_docker()
    archive = prepare()
    beds.remove_stale()
    bed = beds.create(own_network=not on_kind)
    try:
        bed.use_kind(archive) if on_kind else bed.keep_image(archive)
        child_command = network.command_inside(
            bed.directory, ["env", f"{processes.BED_VARIABLE}={bed.directory}", *command]
        )
        child = subprocess.Popen(child_command)
        code = _wait_for(child)
        if code != 0:
            caches.print_progress(f"logs of the bed: {beds.keep_logs(bed)}")
        return code
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        bed.down()


def _wait_for(child: "subprocess.Popen[bytes]") -> int:
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
    """Remove the standing bed and every bed whose owner process ended."""
    beds.remove_stale()
    bed = beds.Bed(beds.beds_directory() / STANDING_BED)
    if bed.directory.exists():
        bed.down()
        caches.print_progress("the bed is removed")
    else:
        caches.print_progress("no bed is running")


def status() -> int:
    """Print what exists of any bed; remove beds whose owner process ended."""
    for bed in beds.remove_stale():
        print(f"{bed.directory.name}: its owner process had ended; removed")
    found = beds.all_beds()
    for bed in found:
        _describe(bed)
    strays = leftovers.find_strays({network.name(bed.directory) for bed in found})
    print(*strays, sep="\n", end="\n" if strays else "")
    if not found and not strays:
        print("no bed exists")
    return 0


def _describe(bed: beds.Bed) -> None:
    owner = bed.owner()
    lifetime = f"ends with process {owner.pid}" if owner else "runs until make bed-down"
    names = sorted(path.name for path in Path(bed.directory / "pids").glob("*") if _is_alive(path))
    print(f"{bed.directory.name}: {lifetime}; processes: {', '.join(names) or 'none'}")
    for line in leftovers.describe(bed.directory):
        print(f"  {line}")


def _is_alive(path: Path) -> bool:
    process = processes.read(path)
    return process is not None and process.is_alive()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
