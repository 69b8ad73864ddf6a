"""Logs of our workers: JSON lines in a pod, readable at a terminal. No payload, key or header value is ever logged."""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import structlog

DRIVERS = ("aiokafka", "redis")
REPEAT_AFTER_S = 10.0
MAX_REMEMBERED = 1_000
SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure(stream: TextIO = sys.stderr, level: str = "INFO", **context: str) -> None:
    """Send structlog and the standard library's logs to `stream`, each line with `context`."""
    renderer = structlog.dev.ConsoleRenderer() if stream.isatty() else structlog.processors.JSONRenderer()
    entry = logging.StreamHandler(stream)
    entry.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    entry.addFilter(DriverLogThrottle())
    logging.basicConfig(handlers=[entry], level=level, force=True)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(**context)


def origin_of(error: BaseException) -> str:
    """Kind and line of an error nobody expected; its text may quote a message and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def get(name: str) -> Any:
    """A logger that speaks through `configure`."""
    return structlog.stdlib.get_logger(name)


class DriverLogThrottle(logging.Filter):
    """Lets each line of a driver through once in ten seconds, and everything else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Lines are known by their text before values are put in."""
        if not record.name.startswith(DRIVERS):
            return True
        line, now = (record.name, str(record.msg)), self._clock()
        if now - self._said.get(line, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            return False
        if len(self._said) >= MAX_REMEMBERED:
            self._said.clear()
        self._said[line] = now
        return True
