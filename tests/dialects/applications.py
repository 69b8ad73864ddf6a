"""Applications on real libraries: orders go in, those that fail come out as dead letters."""

import asyncio
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deadletter.brokers.types import Publication, StoredMessage
from deadletter.core.letters import Headers, Message, Place
from tests.dialects import libraries
from tests.workers.replay_scene import Scene

PATIENCE = 120
PARTITION = 1
HEADERS: Headers = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("ce_type", b"order.placed"),
    ("tag", b"a"),
    ("tag", b"\xff\x00"),
    ("void", None),
)


def order(number: int, words: str) -> Message:
    """An order; its words say where it fails and until when."""
    value = words.encode() + b" %d \xff\x00\xfe" % number
    return Message(b"\xfe\x00key-%d" % number, value, HEADERS, 1_700_000_000_000 + number)


@dataclass
class Application:
    """One library at work on one scene."""

    library: str
    scene: Scene
    folder: Path
    sent: list[Message] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def group(self) -> str:
        return f"{self.scene.name}.shop"

    @property
    def second(self) -> str:
        return f"{self.scene.name}.second"

    @contextmanager
    def runs(self):
        boxes = self.scene.boxes
        told = {
            "Spring": (boxes.source, self.second, boxes.dead, self.group),
            "Connect": (boxes.source, boxes.dead, self.group),
            "Streams": (boxes.source, boxes.dead, self.group, str(self.folder / "state")),
        }[self.library]
        address = self.scene.connection["kafka"]["bootstrapServers"][0]
        with libraries.running(self.library, self.folder / "log", address, *told) as self.process:
            yield

    async def send(self, *words: str) -> None:
        """Orders, all into one partition, so that the last one fails after all others were seen."""
        self.sent = [order(number, text) for number, text in enumerate(words)]
        await self.scene.broker.publish(
            [
                Publication(self.scene.name, message, Place("shop", 0, number), PARTITION)
                for number, message in enumerate(self.sent)
            ]
        )

    async def buried(self, count: int) -> list[StoredMessage]:
        """The letters in the dead box, as soon as there are so many."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while len(found := await self.taken(self.scene.boxes.dead)) < count:
            is_alive = self.process is not None and self.process.poll() is None
            if loop.time() > end or not is_alive:
                pytest.fail(f"{len(found)} of {count} letters came; {await self._last_words()}")
            await asyncio.sleep(0.1)
        return found

    async def _last_words(self) -> str:
        """What the application said, with where its threads stand."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            await asyncio.sleep(2)
        return (self.folder / "log").read_text()[-20_000:]

    async def taken(self, box: str) -> list[StoredMessage]:
        broker = self.scene.broker
        return [taken async for batch in broker.read(box, await broker.window(box)) for taken in batch]
