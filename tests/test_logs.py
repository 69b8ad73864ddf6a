"""Logging of every role: drivers that repeat a line during a broker outage do not fill the log."""

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from deadletter import logs


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Restore handlers and level of the root logger after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def record(name: str, text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, text, values, None)


def configure_worker(stream: io.StringIO) -> None:
    logs.configure(stream, role="courier")


def configure_operator(stream: io.StringIO) -> None:
    logs.configure(stream, "info", library_levels=logs.OPERATOR_LIBRARY_LEVELS, format_tracebacks=False)


def test_a_driver_line_is_logged_once_in_ten_seconds():
    now = [0.0]
    throttle = logs.DriverLogThrottle(lambda: now[0])
    passed = [throttle.filter(record("aiokafka.conn", "no answer from %s", attempt)) for attempt in range(100)]
    assert passed == [True] + [False] * 99
    assert throttle.filter(record("aiokafka.conn", "another line"))
    assert all(throttle.filter(record("deadletter.workers", "ours")) for _ in range(3))
    now[0] = logs.REPEAT_INTERVAL_S
    assert throttle.filter(record("aiokafka.conn", "no answer from %s", 1))


def test_the_memory_of_the_throttle_is_bounded():
    throttle = logs.DriverLogThrottle(lambda: 0.0)
    for number in range(3 * logs.MAX_REMEMBERED_LINES):
        throttle.filter(record("redis", f"text {number}"))
    assert len(throttle._logged_at) <= logs.MAX_REMEMBERED_LINES


@pytest.mark.parametrize("configure", [configure_worker, configure_operator])
def test_every_role_throttles_drivers(root_logger: None, configure: Callable[[io.StringIO], None]):
    stream = io.StringIO()
    configure(stream)
    for _ in range(50):
        logging.getLogger("aiokafka.client").error("Unable connect to node with id %s", 1)
    assert stream.getvalue().count("Unable connect") == 1
