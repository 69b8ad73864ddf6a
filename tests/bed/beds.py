"""A bed: one directory, its parts, its owner; and the sweeping away of beds whose owner died."""

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
_ATTEMPTS = 3
_LOGS_KEPT = 5


@dataclass(frozen=True)
class Part:
    """Something a bed can start: how many ports it takes, how it starts, which processes it consists of."""

    name: str
    ports: int
    start: Callable[..., None]
    all_programs: tuple[str, ...] = ()
    clear: Callable[[Path], None] | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """The names its processes are recorded by."""
        return self.all_programs or (self.name,)


@dataclass(frozen=True)
class Bed:
    """A running bed by its directory."""

    directory: Path

    @property
    def address(self) -> str:
        """The address every part listens on."""
        return str(json.loads((self.directory / "bed.json").read_text())["address"])

    def part(self, part: Part) -> dict[str, Any]:
        """What a part says of itself, after starting it if it does not run."""
        with places.locked(self.directory / "locks" / part.name):
            return self._said(part) or self._start(part)

    def _said(self, part: Part) -> dict[str, Any] | None:
        file = self.directory / f"{part.name}.json"
        found = [processes.read(self.directory / "pids" / program) for program in part.programs]
        alive = all(process is not None and process.is_alive() for process in found)
        return json.loads(file.read_text()) if alive and file.exists() else None

    def _start(self, part: Part) -> dict[str, Any]:
        for attempt in range(1, _ATTEMPTS + 1):
            self._clear(part)
            found = ports.free(self.address, part.ports)
            try:
                part.start(self.directory, part.name, self.address, *found)
                break
            except BedError:
                # Another program may have taken a port between our look and the start.
                if attempt == _ATTEMPTS:
                    raise
        said = {"address": self.address, "ports": found}
        (self.directory / f"{part.name}.json").write_text(json.dumps(said))
        return said

    def _clear(self, part: Part) -> None:
        for program in part.programs:
            processes.kill(processes.of_bed(self.directory, program))
        if part.clear:
            part.clear(self.directory)
        shutil.rmtree(self.directory / part.name, ignore_errors=True)

    def kafka(self) -> str:
        """The bootstrap address of the bed's Kafka."""
        said = self.part(Part("kafka", 2, kafka.start))
        return f"{said['address']}:{said['ports'][0]}"

    def redis(self) -> str:
        """The URL of the bed's Redis."""
        said = self.part(Part("redis", 1, redis.start))
        return redis.url(said["address"], said["ports"][0])

    def kafka_cluster(self) -> kafka_cluster.KafkaCluster:
        """Return the bed's Kafka of three brokers, after starting it if one of them does not run."""
        name = "kafka-cluster"
        said = self.part(Part(name, kafka_cluster.PORTS, kafka_cluster.start, kafka_cluster.programs(name)))
        return kafka_cluster.KafkaCluster(self.directory, name, said["address"], tuple(said["ports"]))

    def redis_sentinel(self) -> redis_sentinel.RedisSentinel:
        """Return the bed's Redis with replica and Sentinels, after starting it if one of them does not run."""
        name = "redis-sentinel"
        said = self.part(Part(name, redis_sentinel.PORTS, redis_sentinel.start, redis_sentinel.programs(name)))
        return redis_sentinel.RedisSentinel(self.directory, name, said["address"], tuple(said["ports"]))

    def api_server(self, name: str = "control") -> control.ApiServer:
        """A control plane without a node."""
        said = self.part(_control(name))
        return control.of(self.directory, name, said["address"], said["ports"][0])

    def cluster(self) -> node.Cluster:
        """A control plane with a node, which knows our image; only within a network of the bed's own, or by kind."""
        if kind.holds(self.directory):
            server = kind.server(self.directory)
            return node.Cluster(server.server, server.kubeconfig, self.directory, self.address, image.name())
        if not network.is_inside(self.directory):
            raise BedError("The node runs only in a network of its own: start the tests by `make test` (as root).")
        with places.locked(self.directory / "locks" / "cluster-and-node"):
            if not self._said(_control("cluster")):
                # A node does not outlive its control plane.
                self._clear(_node(None))
            server = self.api_server("cluster")
            self.part(_node(server))
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

    def take_kind(self, archive: Path) -> None:
        """Let kind make the bed's cluster; the parts listen where its pods reach them."""
        address = kind.start(self.directory, archive)
        (self.directory / "bed.json").write_text(json.dumps({"address": address}))

    def take_image(self, archive: Path) -> None:
        """Keep our image in the bed: the sources may change while it runs, and no image can be built inside."""
        aside = self.directory / "image.new"
        aside.unlink(missing_ok=True)
        try:
            os.link(archive, aside)
        except OSError:
            shutil.copyfile(archive, aside)
        aside.rename(self.directory / "image.tar")

    def owner(self) -> processes.Process | None:
        """The process at whose end the bed ends; none for a bed that stays until it is taken down."""
        return processes.read(self.directory / "owner")

    def is_stale(self) -> bool:
        """Whether the bed outlived its owner."""
        owner = self.owner()
        return owner is not None and not owner.is_alive()

    def down(self) -> None:
        """End everything of the bed, in the machine and in its directory."""
        processes.kill(processes.users_of(self.directory))
        processes.kill(processes.of_bed(self.directory))
        kind.stop(self.directory)
        leftovers.remove(self.directory)
        network.destroy(self.directory)
        if left := leftovers.of(self.directory):
            raise BedError(f"The bed {self.directory.name} is not gone: {', '.join(left)}; remove it and try again.")
        shutil.rmtree(self.directory, ignore_errors=True)
        _after_last_node()


def _control(name: str) -> Part:
    return Part(name, 4, control.start, control.programs(name))


def _node(server: control.ApiServer | None) -> Part:
    def start(bed: Path, _name: str, _address: str, port: int) -> None:
        assert server is not None
        node.start(bed, server, port)

    return Part("node", 1, start, node.PROGRAMS, leftovers.remove)


def home() -> Path:
    """The directory of all beds."""
    return places.state() / "beds"


def create(name: str = "", own_network: bool = False, owned: bool = True) -> Bed:
    """A new bed with nothing running; an owned one ends with this process."""
    name = name or uuid.uuid4().hex[:8]
    aside = home() / f".{name}.{os.getpid()}"
    aside.mkdir(parents=True)
    (aside / "bed.json").write_text(json.dumps({"address": network.ADDRESS if own_network else LOOPBACK}))
    if owned:
        processes.this().write(aside / "owner")
    aside.rename(home() / name)
    if own_network:
        network.create(home() / name)
    return Bed(home() / name)


def every() -> list[Bed]:
    """Every bed there is, running or left over."""
    return [Bed(path) for path in sorted(home().glob("[!.]*")) if path.is_dir()]


def sweep() -> list[Bed]:
    """Take down the beds whose owner died; they are returned."""
    with places.locked(places.state() / "sweep.lock"):
        stale = [bed for bed in every() if bed.is_stale()]
        for bed in stale:
            bed.down()
        _after_last_node()
    return stale


def _after_last_node() -> None:
    if kernel.is_kept() and not any((bed.directory / "node").exists() for bed in every()):
        leftovers.remove_shared()


def keep_logs(bed: Bed) -> Path:
    """Copy the logs of a bed to where they outlive it; only the latest few are kept."""
    folder = places.state() / "logs"
    kept = folder / bed.directory.name
    (bed.directory / "logs").mkdir(exist_ok=True)
    shutil.copytree(bed.directory / "logs", kept, dirs_exist_ok=True)
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[_LOGS_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return kept
