"""A Kafka of three brokers that tests may break: each broker can be killed, stopped, started and lose its disk.

Every broker is a controller too. Internal topics have three replicas, of which two must acknowledge. For other topics
`default.replication.factor` stays at 1, so that tests notice a topic that is created without the wanted factor.
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bed import kafka, processes, tools
from tests.bed.processes import BedError, Process

IDS = (1, 2, 3)
PORTS = 2 * len(IDS)
HEAP = ("-Xms64m", "-Xmx256m")
TIMEOUT_S = 180.0
TRANSACTIONS, GROUPS = "__transaction_state", "__consumer_offsets"
TOPIC_PARTITIONS = 3  # of both internal topics

# Java keeps the last value of a property that appears twice. Brokers notice a dead one after 5 s instead of 9 s.
PROPERTIES = (
    kafka.PROPERTIES
    + """\
node.id={id}
controller.quorum.bootstrap.servers=
controller.quorum.voters={voters}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
min.insync.replicas=2
controlled.shutdown.enable=true
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=1000
"""
)


def programs(name: str) -> tuple[str, ...]:
    """Return the names of its processes."""
    return tuple(f"{name}-{id_}" for id_ in IDS)


@dataclass(frozen=True)
class Partition:
    """Where the replicas of a partition are, by broker id; `leader` is -1 while there is none."""

    topic: str
    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class KafkaCluster:
    """The cluster of one bed. Brokers are known by their ids, 1 to 3."""

    bed: Path
    name: str
    address: str
    ports: tuple[int, ...]

    @property
    def servers(self) -> list[str]:
        """The addresses of all brokers."""
        return [self.server(id_) for id_ in IDS]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(self.servers)

    def server(self, id_: int) -> str:
        """Return the address of one broker."""
        return f"{self.address}:{self.ports[id_ - 1]}"

    def disk(self, id_: int) -> Path:
        """Return the log directory of a broker."""
        return self.bed / self.name / str(id_) / "log"

    def start_all(self) -> None:
        """Format the disks and start all brokers at once; return when each serves clients."""
        for id_ in IDS:
            self._configure(id_)
        kafka.format_disk(self._config(IDS[0]))
        # The other disks differ from the first in two lines, so one run of the slow tool is enough for all of them.
        shutil.copytree(self.disk(IDS[0]), self._formatted)
        for id_ in IDS[1:]:
            self._format(id_)
        for id_ in IDS:
            self.launch(id_)
        for id_ in IDS:
            self.wait(id_)

    def launch(self, id_: int) -> None:
        """Start a broker without waiting for it."""
        options = [*HEAP, *kafka.JVM[2:], kafka.QUICK_START]
        processes.start(self._program(id_), kafka.java(*options, "kafka.Kafka", self._config(id_)), self.bed)

    def start(self, id_: int) -> None:
        """Start a broker and wait until it serves clients."""
        self.launch(id_)
        self.wait(id_)

    def wait(self, id_: int) -> None:
        """Wait until a broker serves clients."""
        port, made = self.ports[id_ - 1], self._process(id_)
        processes.wait_until(f"Kafka broker {id_}", lambda: kafka.serves(self.address, port), TIMEOUT_S, made)

    def kill(self, id_: int, sign: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a broker; after SIGKILL and SIGTERM return when it has ended."""
        found = [process for process in [self._process(id_)] if process is not None and process.is_alive()]
        if sign == signal.SIGKILL:
            processes.kill(found)
        elif sign == signal.SIGTERM:
            processes.stop(found, grace=60)
        else:
            processes.send(found, sign)

    def is_running(self, id_: int) -> bool:
        """True if the process of the broker exists, also if it is suspended."""
        process = self._process(id_)
        return process is not None and process.is_alive()

    def empty_disk(self, id_: int) -> None:
        """Remove everything that a broker has written, as with a replaced disk. The broker must not run.

        First wait until the others have fenced it: a controller that forgot that it leads the quorum refuses to start.
        """
        if self.is_running(id_):
            raise BedError(f"Kafka broker {id_} runs; kill it before emptying its disk.")
        _wait_until(f"broker {id_} is fenced", lambda: id_ not in self.living())
        shutil.rmtree(self.disk(id_))
        self._format(id_)

    def heal(self) -> None:
        """Start or resume every broker and wait until replicas are in sync."""
        for id_ in IDS:
            self.kill(id_, signal.SIGCONT) if self.is_running(id_) else self.launch(id_)
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Wait until every broker sees all three, and every partition with several replicas has them in sync."""
        for id_ in IDS:
            self.wait(id_)
            try:
                _wait_until("replicas in sync", lambda id_=id_: self._lagging(id_) == [])
            except BedError as error:
                raise BedError(f"{error} Broker {id_} sees as lagging: {self._lagging(id_)}") from error

    def _lagging(self, id_: int) -> list[Partition] | None:
        """Return the replicated partitions that are out of sync or without leader; None while a broker is missing.

        A partition with one replica may have lost its only disk; it would never be in sync again.
        """
        found = self._metadata(self.server(id_))
        if found is None or _brokers(found) != set(IDS):
            return None
        replicated = [one for one in _partitions(found) if len(one.replicas) > 1]
        return [one for one in replicated if one.leader not in IDS or set(one.in_sync) != set(one.replicas)]

    def living(self) -> set[int]:
        """Return the ids of the brokers that are registered and not fenced; all of them if none answers."""
        found = self._metadata(self.bootstrap)
        return _brokers(found) if found else set(IDS)

    def partitions(self, *topics: str) -> list[Partition]:
        """Return the partitions of these topics as a living broker describes them."""
        found = self._metadata(self.bootstrap)
        if found is None:
            raise BedError("No broker of the Kafka cluster answers.")
        return [one for one in _partitions(found) if one.topic in topics]

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the broker that leads a partition; -1 if none does."""
        return next(one.leader for one in self.partitions(topic) if one.number == partition)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the id of the broker that coordinates the transactions of this transactional id."""
        return self.leader(TRANSACTIONS, _bucket(transactional_id))

    def move_leaders(self, *topics: str) -> None:
        """Hand every partition of these topics to its next replica."""
        self.elect_leaders(self.prefer_leaders(*topics))

    def prefer_leaders(self, *topics: str) -> dict[tuple[str, int], int]:
        """Make the next replica the preferred leader of every partition of these topics, and return it."""
        moved = {(one.topic, one.number): _rotated(one) for one in self.partitions(*topics)}
        wanted = {place: ids[0] for place, ids in moved.items()}
        plan = [{"topic": topic, "partition": number, "replicas": ids} for (topic, number), ids in moved.items()]
        arguments = ("--reassignment-json-file", self._write_plan(plan), "--execute")
        self._run_tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *arguments)
        _wait_until("the new order of replicas", lambda: self._has(wanted, lambda one: one.replicas[0]))
        return wanted

    def elect_leaders(self, wanted: dict[tuple[str, int], int]) -> None:
        """Let the preferred leaders take over."""
        plan = [{"topic": topic, "partition": number} for topic, number in wanted]
        arguments = ("--election-type", "preferred", "--path-to-json-file", self._write_plan(plan))
        self._run_tool("org.apache.kafka.tools.LeaderElectionCommand", *arguments)
        _wait_until("the new leaders", lambda: self._has(wanted, lambda one: one.leader))

    def _write_plan(self, plan: list[dict[str, Any]]) -> Path:
        file = self.bed / self.name / "plan.json"
        file.write_text(json.dumps({"version": 1, "partitions": plan}))
        return file

    def _run_tool(self, tool: str, *arguments: str | Path) -> None:
        kafka.run_tool(tool, "--bootstrap-server", self.bootstrap, *arguments, cwd=self.bed / self.name)

    def _has(self, wanted: dict[tuple[str, int], int], value: Callable[[Partition], int]) -> bool:
        topics = {topic for topic, _ in wanted}
        return {(one.topic, one.number): value(one) for one in self.partitions(*topics)} == wanted

    def _metadata(self, servers: str) -> dict[str, Any] | None:
        command = [tools.path("kcat"), "-b", servers, "-L", "-J", "-m", "5"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return json.loads(result.stdout) if result.returncode == 0 else None

    @property
    def _formatted(self) -> Path:
        return self.bed / self.name / "formatted"

    def _program(self, id_: int) -> str:
        return f"{self.name}-{id_}"

    def _process(self, id_: int) -> Process | None:
        return processes.read(self.bed / "pids" / self._program(id_))

    def _config(self, id_: int) -> Path:
        return self.bed / self.name / str(id_) / "server.properties"

    def _configure(self, id_: int) -> None:
        config, controllers = self._config(id_), self.ports[len(IDS) :]
        config.parent.mkdir(parents=True, exist_ok=True)
        voters = ",".join(f"{one}@{self.address}:{controllers[one - 1]}" for one in IDS)
        port, controller = self.ports[id_ - 1], controllers[id_ - 1]
        config.write_text(
            PROPERTIES.format(
                id=id_, address=self.address, port=port, controller=controller, voters=voters, directory=config.parent
            )
        )

    def _format(self, id_: int) -> None:
        shutil.copytree(self._formatted, self.disk(id_))
        meta = self.disk(id_) / "meta.properties"
        own = {"node.id": str(id_), "directory.id": kafka.new_id()}
        lines = [line.partition("=") for line in meta.read_text().splitlines()]
        meta.write_text("".join(f"{key}{sign}{own.get(key, value)}\n" for key, sign, value in lines))


def start(bed: Path, name: str, address: str, *ports: int) -> None:
    """Start the three brokers of a bed and wait until they serve clients."""
    tools.need("java", "kcat")
    KafkaCluster(bed, name, address, ports).start_all()


def _wait_until(what: str, condition: Callable[[], bool]) -> None:
    processes.wait_until(f"Kafka cluster: {what}", condition, TIMEOUT_S)


def _brokers(metadata: dict[str, Any]) -> set[int]:
    return {one["id"] for one in metadata["brokers"]}


def _partitions(metadata: dict[str, Any]) -> list[Partition]:
    return [
        Partition(
            topic["topic"],
            one["partition"],
            one["leader"],
            tuple(replica["id"] for replica in one["replicas"]),
            tuple(replica["id"] for replica in one["isrs"]),
        )
        for topic in metadata["topics"]
        for one in topic["partitions"]
    ]


def _rotated(partition: Partition) -> list[int]:
    """Return the replicas in an order whose first is the one after the leader."""
    replicas = list(partition.replicas)
    at = replicas.index(partition.leader) + 1
    return replicas[at:] + replicas[:at]


def _bucket(name: str) -> int:
    """Return the partition of an internal topic for a transactional id or a group: Java's hash of its name."""
    code = 0
    for char in name:
        code = (31 * code + ord(char)) & 0xFFFFFFFF
    return abs(code - (1 << 32) if code >> 31 else code) % TOPIC_PARTITIONS
