"""A bed: its directory, parts and owner process; and the removal of beds whose owner ended."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bed import (
    control,
    image,
    kafka,
    kafka_cluster,
    kernel,
    kind,
    leftovers,
    network,
    node,
    places,
    ports,
    processes,
    redis,
    redis_sentinel,
)
from tests.bed.processes import BedError

LOOPBACK = "127.0.0.1"
_MAX_ATTEMPTS = 3
_MAX_KEPT_LOGS = 5


@dataclass(frozen=True)
class Part:
    """A part of a bed: how many ports it needs, how it starts, which processes it has."""

    name: str
    ports: int
    start: Callable[..., None]
    all_programs: tuple[str, ...] = ()
    clear: Callable[[Path], None] | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """The names under which its processes are recorded."""
        return self.all_programs or (self.name,)


@dataclass(frozen=True)
class Bed:
    """A running bed, identified by its directory."""

    directory: Path

    @property
    def address(self) -> str:
        """The address that every part listens on."""
        return str(json.loads((self.directory / "bed.json").read_text())["address"])

    def ensure_part(self, part: Part) -> dict[str, Any]:
        """Start the part if it does not run; return its address and ports."""
        with places.locked(self.directory / "locks" / part.name):
            return self._read_running(part) or self._start(part)

    def _read_running(self, part: Part) -> dict[str, Any] | None:
        file = self.directory / f"{part.name}.json"
        found = [processes.read(self.directory / "pids" / program) for program in part.programs]
        alive = all(process is not None and process.is_alive() for process in found)
        return json.loads(file.read_text()) if alive and file.exists() else None

    def _start(self, part: Part) -> dict[str, Any]:
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            self._clear(part)
            found = ports.free(self.address, part.ports)
            try:
                part.start(self.directory, part.name, self.address, *found)
                break
            except BedError:
                # Another program may have taken a port between the check and the start.
                if attempt == _MAX_ATTEMPTS:
                    raise
        started = {"address": self.address, "ports": found}
        (self.directory / f"{part.name}.json").write_text(json.dumps(started))
        return started

    def _clear(self, part: Part) -> None:
        for program in part.programs:
            processes.kill(processes.find_of_bed(self.directory, program))
        if part.clear:
            part.clear(self.directory)
        shutil.rmtree(self.directory / part.name, ignore_errors=True)

    def kafka(self) -> str:
        """Return the bootstrap address of the bed's Kafka, after starting it if it does not run."""
        started = self.ensure_part(Part("kafka", 2, kafka.start))
        return f"{started['address']}:{started['ports'][0]}"

    def redis(self) -> str:
        """Return the URL of the bed's Redis, after starting it if it does not run."""
        started = self.ensure_part(Part("redis", 1, redis.start))
        return redis.url(started["address"], started["ports"][0])

    def kafka_cluster(self) -> kafka_cluster.KafkaCluster:
        """Return the bed's Kafka of three brokers, after starting it if one of them does not run."""
        name = "kafka-cluster"
        started = self.ensure_part(Part(name, kafka_cluster.PORTS, kafka_cluster.start, kafka_cluster.programs(name)))
        return kafka_cluster.KafkaCluster(self.directory, name, started["address"], tuple(started["ports"]))

    def redis_sentinel(self) -> redis_sentinel.RedisSentinel:
        """Return the bed's Redis with replica and Sentinels, after starting it if one of them does not run."""
        name = "redis-sentinel"
        started = self.ensure_part(
            Part(name, redis_sentinel.PORTS, redis_sentinel.start, redis_sentinel.programs(name))
        )
        return redis_sentinel.RedisSentinel(self.directory, name, started["address"], tuple(started["ports"]))

    def api_server(self, name: str = "control") -> control.ApiServer:
        """Return a control plane without a node, after starting it if it does not run."""
        started = self.ensure_part(_control(name))
        return control.api_server_of(self.directory, name, started["address"], started["ports"][0])

    def cluster(self) -> node.Cluster:
        """Return a control plane with a node that has our image; needs a network of the bed's own, or kind."""
        if kind.is_used(self.directory):
            server = kind.server(self.directory)
            return node.Cluster(server.server, server.kubeconfig, self.directory, self.address, image.name())
        if not network.is_inside(self.directory):
            raise BedError("The node runs only in a network of its own. Start the tests with `make test` as root.")
        with places.locked(self.directory / "locks" / "cluster-and-node"):
            if not self._read_running(_control("cluster")):
                # A node cannot continue with a new control plane.
                self._clear(_node(None))
            server = self.api_server("cluster")
            self.ensure_part(_node(server))
            cluster = node.Cluster(server.server, server.kubeconfig, self.directory, self.address, image.name())
            self._load(cluster)
        return cluster

    def _load(self, cluster: node.Cluster) -> None:
        archive = self.directory / "image.tar"
        found = archive.stat()
        mark = self.directory / "node" / f"image-{found.st_ino}-{found.st_mtime_ns}"
        if not mark.exists():
            cluster.load(archive)
            mark.touch()

    def use_kind(self, archive: Path) -> None:
        """Create the cluster of the bed with kind; the parts listen where its pods can reach them."""
        address = kind.start(self.directory, archive)
        (self.directory / "bed.json").write_text(json.dumps({"address": address}))

    def keep_image(self, archive: Path) -> None:
        """Copy our image into the bed: sources may change while it runs, and no image can be built inside."""
        aside = self.directory / "image.new"
        aside.unlink(missing_ok=True)
        try:
            os.link(archive, aside)
        except OSError:
            shutil.copyfile(archive, aside)
        aside.rename(self.directory / "image.tar")

    def owner(self) -> processes.Process | None:
        """Return the process whose end ends the bed; None for a bed that runs until `make bed-down`."""
        return processes.read(self.directory / "owner")

    def is_stale(self) -> bool:
        """True if the owner process of the bed has ended."""
        owner = self.owner()
        return owner is not None and not owner.is_alive()

    def down(self) -> None:
        """Stop all processes of the bed and remove everything it left on the machine."""
        processes.kill(processes.find_users(self.directory))
        processes.kill(processes.find_of_bed(self.directory))
        kind.stop(self.directory)
        leftovers.remove(self.directory)
        network.destroy(self.directory)
        if left := leftovers.describe(self.directory):
            raise BedError(
                f"The bed {self.directory.name} is not removed: {', '.join(left)} left. Remove it and try again."
            )
        shutil.rmtree(self.directory, ignore_errors=True)
        _after_last_node()


def _control(name: str) -> Part:
    return Part(name, 4, control.start, control.programs(name))


def _node(server: control.ApiServer | None) -> Part:
    def start(bed: Path, _name: str, _address: str, port: int) -> None:
        assert server is not None
        node.start(bed, server, port)

    return Part("node", 1, start, node.PROGRAMS, leftovers.remove)


def beds_directory() -> Path:
    """Return the directory of all beds."""
    return places.state() / "beds"


def create(name: str = "", own_network: bool = False, owned: bool = True) -> Bed:
    """Create a bed without running parts; an owned bed ends with this process."""
    name = name or uuid.uuid4().hex[:8]
    aside = beds_directory() / f".{name}.{os.getpid()}"
    aside.mkdir(parents=True)
    (aside / "bed.json").write_text(json.dumps({"address": network.ADDRESS if own_network else LOOPBACK}))
    if owned:
        processes.current().write(aside / "owner")
    aside.rename(beds_directory() / name)
    if own_network:
        network.create(beds_directory() / name)
    return Bed(beds_directory() / name)


def all_beds() -> list[Bed]:
    """Return all beds, running or left over."""
    return [Bed(path) for path in sorted(beds_directory().glob("[!.]*")) if path.is_dir()]


def remove_stale() -> list[Bed]:
    """Remove the beds whose owner process ended and return them."""
    with places.locked(places.state() / "sweep.lock"):
        stale = [bed for bed in all_beds() if bed.is_stale()]
        for bed in stale:
            bed.down()
        _after_last_node()
    return stale


def _after_last_node() -> None:
    if kernel.is_saved() and not any((bed.directory / "node").exists() for bed in all_beds()):
        leftovers.remove_shared()


def keep_logs(bed: Bed) -> Path:
    """Copy the logs of a bed to a directory that outlives it; only the latest few are kept."""
    folder = places.state() / "logs"
    kept = folder / bed.directory.name
    (bed.directory / "logs").mkdir(exist_ok=True)
    shutil.copytree(bed.directory / "logs", kept, dirs_exist_ok=True)
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[_MAX_KEPT_LOGS:]:
        shutil.rmtree(old, ignore_errors=True)
    return kept
