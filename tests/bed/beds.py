"""A bed: one directory, its parts, its owner; and the sweeping away of beds whose owner died."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bed import kafka, places, ports, processes, redis
from tests.bed.processes import BedError

LOOPBACK = "127.0.0.1"
_ATTEMPTS = 3


@dataclass(frozen=True)
class Bed:
    """A running bed by its directory."""

    directory: Path

    @property
    def address(self) -> str:
        """The address every part listens on."""
        return str(json.loads((self.directory / "bed.json").read_text())["address"])

    def part(self, name: str, count: int, start: Callable[..., None]) -> dict[str, Any]:
        """What a part says of itself, after starting it if it does not run; `start` gets address and free ports."""
        with places.locked(self.directory / "locks" / name):
            said = self._said(name)
            return said or self._start(name, count, start)

    def _said(self, name: str) -> dict[str, Any] | None:
        process = processes.read(self.directory / "pids" / name)
        file = self.directory / f"{name}.json"
        alive = process is not None and process.is_alive()
        return json.loads(file.read_text()) if alive and file.exists() else None

    def _start(self, name: str, count: int, start: Callable[..., None]) -> dict[str, Any]:
        for attempt in range(_ATTEMPTS):
            processes.stop(processes.of_bed(self.directory, name))
            shutil.rmtree(self.directory / name, ignore_errors=True)
            found = ports.free(self.address, count)
            try:
                start(self.directory, name, self.address, *found)
            except BedError:
                # Another program may have taken a port between our look and the start.
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            said = {"address": self.address, "ports": found}
            (self.directory / f"{name}.json").write_text(json.dumps(said))
            return said
        raise AssertionError

    def kafka(self) -> str:
        """The bootstrap address of the bed's Kafka."""
        said = self.part("kafka", 2, kafka.start)
        return f"{said['address']}:{said['ports'][0]}"

    def redis(self) -> str:
        """The URL of the bed's Redis."""
        said = self.part("redis", 1, redis.start)
        return redis.url(said["address"], said["ports"][0])

    def owner(self) -> processes.Process | None:
        """The process at whose end the bed ends; none for a bed that stays until it is taken down."""
        return processes.read(self.directory / "owner")

    def is_stale(self) -> bool:
        """Whether the bed outlived its owner."""
        owner = self.owner()
        return owner is not None and not owner.is_alive()

    def down(self) -> None:
        """End everything of the bed and remove its directory."""
        processes.stop(processes.of_bed(self.directory))
        shutil.rmtree(self.directory, ignore_errors=True)


def home() -> Path:
    """The directory of all beds."""
    return places.state() / "beds"


def create(name: str = "", address: str = LOOPBACK, owned: bool = True) -> Bed:
    """A new bed with nothing running; an owned one ends with this process."""
    name = name or uuid.uuid4().hex[:8]
    aside = home() / f".{name}.{os.getpid()}"
    aside.mkdir(parents=True)
    (aside / "bed.json").write_text(json.dumps({"address": address}))
    if owned:
        processes.this().write(aside / "owner")
    aside.rename(home() / name)
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
    return stale
