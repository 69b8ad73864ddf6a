"""Applications that use real libraries: they consume orders and write dead letters for those that fail."""

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

TIMEOUT_S = 120
PARTITION = 1
HEADERS: Headers = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("ce_type", b"order.placed"),
    ("tag", b"a"),
    ("tag", b"\xff\x00"),
    ("void", None),
)


def order(number: int, words: str) -> Message:
    """Return an order; its words say where it fails and until when (see Orders.java)."""
    value = words.encode() + b" %d \xff\x00\xfe" % number
    return Message(b"\xfe\x00key-%d" % number, value, HEADERS, 1_700_000_000_000 + number)


@dataclass
class Application:
    """An application with one library on the boxes of one scene."""

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
    def running(self):
        boxes = self.scene.boxes
        arguments = {
            "Spring": (boxes.source, self.second, boxes.dead, self.group),
            "Connect": (boxes.source, boxes.dead, self.group),
            "Streams": (boxes.source, boxes.dead, self.group, str(self.folder / "state")),
        }[self.library]
        address = self.scene.connection["kafka"]["bootstrapServers"][0]
        with libraries.running(self.library, self.folder / "log", address, *arguments) as self.process:
            yield

    async def send(self, *words: str) -> None:
        """Send orders into one partition, so that the last one fails after all others were consumed."""
        self.sent = [order(number, text) for number, text in enumerate(words)]
        await self.scene.broker.publish(
            [
                Publication(self.scene.name, message, Place("shop", 0, number), PARTITION)
                for number, message in enumerate(self.sent)
            ]
        )

    async def buried(self, count: int) -> list[StoredMessage]:
        """Wait for this many letters in the dead box and return them."""
        loop = asyncio.get_running_loop()
        end = loop.time() + TIMEOUT_S
        while len(found := await self.read(self.scene.boxes.dead)) < count:
            is_alive = self.process is not None and self.process.poll() is None
            if loop.time() > end or not is_alive:
                pytest.fail(f"{len(found)} of {count} letters arrived; {await self._read_log()}")
            await asyncio.sleep(0.1)
        return found

    async def _read_log(self) -> str:
        """Return the log of the application, with a thread dump if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            await asyncio.sleep(2)
        return (self.folder / "log").read_text()[-20_000:]

    async def read(self, box: str) -> list[StoredMessage]:
        broker = self.scene.broker
        return [taken async for batch in broker.read(box, await broker.window(box)) for taken in batch]
