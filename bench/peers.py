"""Programs that we compare with: a plain Java client doing the same work, and kcat."""

import asyncio
import shlex
import subprocess
import time
from functools import partial
from pathlib import Path

from tests.bed import beds, kafka, tools

SOURCE = Path(__file__).parent / "java" / "Replay.java"


def full_kafka(bed: beds.Bed) -> str:
    """Start a broker with the full JIT compiler and return its address."""
    started = bed.ensure_part(beds.Part("bench-kafka", 2, partial(kafka.start, quick=False)))
    return f"{started['address']}:{started['ports'][0]}"


def compiled(bed: beds.Bed) -> Path:
    """Compile the Java program and return the directory of its classes."""
    classes = bed.directory / "java"
    if not (classes / "Replay.class").exists():
        tools.need("javac")
        command = [tools.path("javac"), "-cp", f"{kafka.jars()}/*", "-d", str(classes), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
    return classes


async def java(classes: Path, arguments: list[str]) -> float:
    """Return the seconds of the Java program, without the start of its JVM."""
    path = f"{classes}:{kafka.jars()}/*"
    return float(await _output([tools.path("java"), "-Xmx512m", "-cp", path, "Replay", *arguments]))


async def kcat(servers: str, source: str, target: str, count: int) -> float:
    """Return the seconds of `kcat | kcat`: values only, no keys, headers or transactions."""
    quoted = [shlex.quote(word) for word in (tools.path("kcat"), servers, source, target)]
    begun = time.monotonic()
    command = f"{quoted[0]} -C -q -b {quoted[1]} -t {quoted[2]} -o beginning -e -c {count} | "
    command += f"{quoted[0]} -P -b {quoted[1]} -t {quoted[3]}"
    await _output(["sh", "-c", command])
    return time.monotonic() - begun


async def _output(command: list[str]) -> str:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, errors = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"{command[0]}: {errors.decode()[-2_000:]}")
    return out.decode().strip().splitlines()[-1] if out.strip() else ""
