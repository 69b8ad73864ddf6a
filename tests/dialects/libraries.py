"""Real libraries that write dead letters: their jars and our small programs around them, kept in the bed's cache."""

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
    """The compiled programs; the first time needs a way to the outside."""
    jars()
    return caches.get_or_make(_entry("programs", *_sources()), "the programs that write dead letters", "10 s", _compile)


def jars() -> Path:
    """The jars of Spring Kafka, Kafka Connect and Kafka Streams."""
    return caches.get_or_make(_entry("jars"), "the jars of libraries that write dead letters", "20 s", _fetch)


def _sources() -> list[Path]:
    return sorted(HERE.glob("*.java"))


def _entry(kind: str, *files: Path) -> Path:
    told = b"".join((kafka.version().encode(), POM.read_bytes(), *(file.read_bytes() for file in files)))
    return places.cache() / f"dialects-{kind}-{hashlib.sha256(told).hexdigest()[:16]}"


def _fetch(aside: Path) -> None:
    tools.need("mvn", "java")
    version = f"-Dkafka.version={kafka.version()}"
    tools.run(["mvn", "-q", "-B", "-f", POM, version, GOAL, f"-DoutputDirectory={aside}", "-DincludeScope=runtime"])


def _compile(aside: Path) -> None:
    tools.need("javac")
    tools.run([tools.path("javac"), "-cp", f"{jars()}/*", "-d", aside, *_sources()])


@contextmanager
def running(program: str, log: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """One of the programs, which ends with its standard input: also when this process dies."""
    classes = f"{prepare()}:{jars()}/*"
    with log.open("wb") as said:
        command = [tools.path("java"), *JVM, "-cp", classes, program, *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, cwd=log.parent)
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
