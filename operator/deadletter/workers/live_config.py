"""`live.json`: the gate and the rate, re-read every few seconds, so that they change without a restart."""

import asyncio
from pathlib import Path

from pydantic import ValidationError

from deadletter import logs
from deadletter.api.assignments import LiveConfig

REFRESH_INTERVAL_S = 5.0


class LiveConfigFile:
    """The newest `Live` that could be read; a file that is missing says nothing, a broken one changes nothing."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "live.json"
        self._text = b""
        self._log = logs.get(__name__)
        self.current = LiveConfig()
        self.refresh()

    def refresh(self) -> LiveConfig:
        """Read it now."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return self.current
        if text != self._text:
            self._text = text
            self._take(text)
        return self.current

    def _take(self, text: bytes) -> None:
        try:
            self.current = LiveConfig.model_validate_json(text)
        except ValidationError:
            self._log.warning("live.json is not understood; the last one stays")

    async def follow(self) -> None:
        """Keep `current` fresh until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            self.refresh()
