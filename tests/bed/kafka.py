"""A real Kafka: one KRaft node, run from the jars that Maven downloads."""

import os
import re
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from tests.bed import caches, places, processes, tools

POM = places.HERE / "jars" / "pom.xml"
JVM = ["-Xms256m", "-Xmx{heap}", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
QUICK_START = "-XX:TieredStopAtLevel=1"

# No retention by default: tests send messages with old timestamps.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listeners=PLAIN://{address}:{port},CONTROLLER://{address}:{controller}
advertised.listeners=PLAIN://{address}:{port}
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
controller.quorum.bootstrap.servers={address}:{controller}
log.dirs={directory}/log
num.partitions=1
auto.create.topics.enable=false
offsets.topic.num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
transaction.max.timeout.ms=900000
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
log.retention.ms=-1
log.retention.check.interval.ms=10000
log.cleaner.backoff.ms=1000
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=2
log.cleaner.dedupe.buffer.size=16777216
controlled.shutdown.enable=false
"""


def version() -> str:
    """Return the version that the pom pins."""
    return re.findall(r"<kafka.version>(.+)</kafka.version>", POM.read_text())[0]


def jars() -> Path:
    """Return the directory with the jars of the broker and its Java tools."""
    return caches.get_or_make(places.cache() / f"kafka-{version()}", f"the jars of Kafka {version()}", "15 s", _fetch)


def _fetch(aside: Path) -> None:
    tools.need("mvn", "java")
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    tools.run(["mvn", "-q", "-B", "-f", POM, goal, f"-DoutputDirectory={aside}", "-DincludeScope=runtime"])


def java(*arguments: str | Path) -> list[str]:
    """Return the command that runs one of Kafka's Java programs."""
    return [tools.path("java"), "-cp", f"{jars()}/*", *map(str, arguments)]


def start(
    bed: Path, name: str, address: str, port: int, controller: int, quick: bool = True, settings: str = ""
) -> None:
    """Start a broker with its log in the bed and wait until it serves clients; `settings` are more properties."""
    tools.need("java")
    directory = bed / name
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "server.properties"
    properties = PROPERTIES.format(address=address, port=port, controller=controller, directory=directory)
    config.write_text(properties + settings)
    if not (directory / "log" / "meta.properties").exists():
        format_disk(config, "--standalone")
    options = [word.format(heap="512m" if quick else "1g") for word in JVM] + ([QUICK_START] if quick else [])
    made = processes.start(name, java(*options, "kafka.Kafka", config), bed)
    processes.wait_until("Kafka", lambda: serves(address, port), 180, made)


def new_id() -> str:
    """Return a random id as Kafka writes them: a UUID in base64 that does not begin with a dash."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)


def format_disk(config: Path, *more: str) -> None:
    """Format the log directory that a configuration file names, for a new cluster."""
    run_tool("kafka.tools.StorageTool", "format", *more, "-t", new_id(), "-c", config, cwd=config.parent)


def run_tool(*arguments: str | Path, cwd: Path) -> str:
    """Run one of Kafka's Java tools to its end and return its output."""
    return tools.run(java("-XX:+UseSerialGC", QUICK_START, *arguments), cwd=cwd)


def serves(address: str, port: int) -> bool:
    """True if the broker answers a metadata request."""
    command = [tools.path("kcat"), "-b", f"{address}:{port}", "-L", "-m", "2"]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False, env=os.environ)
    return result.returncode == 0
