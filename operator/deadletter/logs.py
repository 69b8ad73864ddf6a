"""Set up logging of the operator and the workers: JSON lines in a pod, readable text at a terminal.

Payloads, keys and header values are never logged.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import structlog

DRIVERS = ("aiokafka", "redis")
REPEAT_INTERVAL_S = 10.0
MAX_REMEMBERED_LINES = 1_000
WORKER_LIBRARY_LEVELS: Mapping[str, int] = {"aiokafka": logging.WARNING}
OPERATOR_LIBRARY_LEVELS: Mapping[str, int] = {
    **dict.fromkeys(("aiokafka", "asyncio", "kopf", "aiohttp", "kubernetes"), logging.WARNING),
    "redis": logging.ERROR,
}


def configure(
    stream: TextIO | None = None,
    level: str = "INFO",
    *,
    library_levels: Mapping[str, int] = WORKER_LIBRARY_LEVELS,
    format_tracebacks: bool = True,
    **context: str,
) -> None:
    """Send the log lines of structlog and of libraries to `stream` (default: stderr), each with `context`."""
    target = sys.stderr if stream is None else stream
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if format_tracebacks else []),
    ]
    renderer = structlog.dev.ConsoleRenderer() if target.isatty() else structlog.processors.JSONRenderer()
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    handler.addFilter(DriverLogThrottle())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for name, library_level in library_levels.items():
        logging.getLogger(name).setLevel(library_level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(**context)


def origin_of(error: BaseException) -> str:
    """Return type and line of an unexpected error. Its text is left out because it may quote a message."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def get(name: str) -> Any:
    """Return a logger that uses the settings of `configure`."""
    return structlog.stdlib.get_logger(name)


class DriverLogThrottle(logging.Filter):
    """Passes each log line of a driver once in ten seconds, and every other line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a repeated line. Lines are compared before their values are inserted."""
        if not record.name.startswith(DRIVERS):
            return True
        line, now = (record.name, str(record.msg)), self._clock()
        if now - self._logged_at.get(line, -REPEAT_INTERVAL_S) < REPEAT_INTERVAL_S:
            return False
        if len(self._logged_at) >= MAX_REMEMBERED_LINES:
            self._logged_at.clear()
        self._logged_at[line] = now
        return True
