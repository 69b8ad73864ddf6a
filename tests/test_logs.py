"""A broker that is away for a night does not fill the log."""

import io
import logging

import pytest

from deadletter import logs as worker_logs
from deadletter.controller import logs as operator_logs


@pytest.fixture
def kept() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def record(name: str, text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, text, values, None)


def test_a_drivers_line_is_said_once_in_ten_seconds():
    now = [0.0]
    sparing = worker_logs.DriverLogThrottle(lambda: now[0])
    said = [sparing.filter(record("aiokafka.conn", "no answer from %s", attempt)) for attempt in range(100)]
    assert said == [True] + [False] * 99
    assert sparing.filter(record("aiokafka.conn", "another thing"))
    assert all(sparing.filter(record("deadletter.workers", "ours")) for _ in range(3))
    now[0] = worker_logs.REPEAT_AFTER_S
    assert sparing.filter(record("aiokafka.conn", "no answer from %s", 1))


def test_what_is_remembered_is_bounded():
    sparing = worker_logs.DriverLogThrottle(lambda: 0.0)
    for number in range(3 * worker_logs.MAX_REMEMBERED):
        sparing.filter(record("redis", f"text {number}"))
    assert len(sparing._said) <= worker_logs.MAX_REMEMBERED


@pytest.mark.parametrize("configure", [worker_logs.configure, lambda stream: operator_logs.configure("INFO")])
def test_every_role_is_sparing(kept: None, monkeypatch: pytest.MonkeyPatch, configure):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure(stream)
    for _ in range(50):
        logging.getLogger("aiokafka.client").error("Unable connect to node with id %s", 1)
    assert stream.getvalue().count("Unable connect") == 1
