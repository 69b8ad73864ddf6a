"""Read `live.json`, the settings that change without a restart: pause, rate and redaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError

from deadletter import logs
from deadletter.api.worker_config import LiveConfig
from deadletter.workers import process

REFRESH_INTERVAL_S = 5.0


class LiveConfigFile:
    """The latest valid content of `live.json`; a missing or invalid file leaves the previous content in force."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "live.json"
        self._text = b""
        self._log = logs.get(__name__)
        self.current = LiveConfig()
        self.refresh()

    def refresh(self) -> LiveConfig:
        """Read the file again and return the current content."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return self.current
        if text != self._text:
            self._text = text
            self._parse(text)
        return self.current

    def _parse(self, text: bytes) -> None:
        try:
            self.current = LiveConfig.model_validate_json(text)
        except ValidationError:
            self._log.warning("live.json is not valid, keeping the previous settings")

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Keep `current` up to date while the block runs."""
        task = asyncio.create_task(self._refresh_forever())
        try:
            yield
        finally:
            await process.cancel_and_wait(task)

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            self.refresh()
