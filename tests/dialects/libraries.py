"""Real libraries that write dead letters: their jars, and small programs that use them, cached like the test bed."""

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed import caches, kafka, places, tools

HERE = Path(__file__).resolve().parent / "java"
POM = HERE / "pom.xml"
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def prepare() -> Path:
    """Return the compiled programs; the first call needs the internet."""
    jars()
    return caches.get_or_make(_entry("programs", *_sources()), "the programs that write dead letters", "10 s", _compile)


def jars() -> Path:
    """Return the jars of Spring Kafka, Kafka Connect and Kafka Streams."""
    return caches.get_or_make(_entry("jars"), "the jars of libraries that write dead letters", "20 s", _fetch)


def _sources() -> list[Path]:
    return sorted(HERE.glob("*.java"))


def _entry(kind: str, *files: Path) -> Path:
    content = b"".join((kafka.version().encode(), POM.read_bytes(), *(file.read_bytes() for file in files)))
    return places.cache() / f"dialects-{kind}-{hashlib.sha256(content).hexdigest()[:16]}"


def _fetch(aside: Path) -> None:
    tools.need("mvn", "java")
    version = f"-Dkafka.version={kafka.version()}"
    tools.run(["mvn", "-q", "-B", "-f", POM, version, GOAL, f"-DoutputDirectory={aside}", "-DincludeScope=runtime"])


def _compile(aside: Path) -> None:
    tools.need("javac")
    tools.run([tools.path("javac"), "-cp", f"{jars()}/*", "-d", aside, *_sources()])


@contextmanager
def running(program: str, log: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run one of the programs; it ends when its standard input is closed, also if this process dies."""
    classes = f"{prepare()}:{jars()}/*"
    with log.open("wb") as output:
        command = [tools.path("java"), *JVM, "-cp", classes, program, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=log.parent)
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
