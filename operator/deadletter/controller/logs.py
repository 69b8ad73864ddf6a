"""Logs of the operator: JSON lines in a pod, readable at a terminal; the libraries' lines go the same way."""

import logging
import sys
from typing import Any

import structlog

from deadletter.logs import DriverLogThrottle

SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
QUIET = ("aiokafka", "asyncio", "kopf", "aiohttp", "kubernetes", "redis")


def configure(level: str) -> None:
    """Send every log line to stderr in one form."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    entry = logging.StreamHandler(sys.stderr)
    entry.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    entry.addFilter(DriverLogThrottle())
    logging.basicConfig(handlers=[entry], level=level.upper(), force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR if name == "redis" else logging.WARNING)
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=False,
    )
