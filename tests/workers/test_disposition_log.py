"""Every burial, discard and parking has a log line, or is counted in the summary of its second."""

from collections.abc import Callable
from typing import Any

from structlog.testing import capture_logs

from deadletter.core.letters import Category, Envelope, Failure, Letter, Message, Place
from deadletter.workers.courier.disposition_log import BURIED, DISCARDED, PARKED, DispositionLog

SECRET = b"secret"


class Timers:
    """Collects what is scheduled, so that a test ends a second when it wants."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> None:
        self.waiting.append((seconds, function))

    def run_next(self) -> float:
        """Run the next function and return its delay."""
        seconds, function = self.waiting.pop(0)
        function()
        return seconds


def failed(name: str, error_type: str = "Http500") -> Letter:
    message = Message(SECRET, SECRET, (("tier", SECRET),), 0)
    failure = Failure(error_type, "order 7 failed", Category.Transient)
    return Letter(message, Place("orders", 0, 0), Envelope(id=name, attempts=3, failure=failure))


def logged(write: Callable[[DispositionLog, Timers], Any]) -> list[dict[str, Any]]:
    timers = Timers()
    with capture_logs() as lines:
        write(DispositionLog(timers), timers)
    assert SECRET.decode() not in str(lines)
    return [dict(line) for line in lines]


def test_a_line_names_the_message_and_its_cause() -> None:
    def write(log: DispositionLog, _: Timers) -> None:
        log.record(BURIED, failed("orders/0/7"), "AttemptsExhausted")
        log.record(DISCARDED, failed("orders/0/8"), "Expired")
        log.record(PARKED, failed("orders/0/9"), "RetryLater")

    first, second, third = logged(write)
    group = first.pop("failure_group")
    assert len(group) == 8
    assert first == {
        "event": "message buried",
        "log_level": "info",
        "id": "orders/0/7",
        "attempts": 3,
        "error_type": "Http500",
        "reason": "AttemptsExhausted",
    }
    assert (second["event"], second["log_level"]) == ("message discarded", "warning")
    assert (third["event"], third["log_level"], third["reason"]) == ("message parked", "info", "RetryLater")
    assert {second["failure_group"], third["failure_group"]} == {group}


def test_more_than_ten_in_a_second_are_summarised_with_their_causes() -> None:
    def write(log: DispositionLog, timers: Timers) -> None:
        for number in range(10):
            log.record(BURIED, failed(f"orders/0/{number}"), "Refused")
        for number in range(20):
            log.record(BURIED, failed(f"orders/0/{number}", "Http422" if number % 4 else "Http400"), "Refused")
        log.record(DISCARDED, failed("orders/0/30"), "Expired")
        assert timers.run_next() == 1.0
        log.record(BURIED, failed("orders/0/31"), "Refused")

    lines = logged(write)
    assert [line["event"] for line in lines] == [
        *["message buried"] * 10,
        "message buried, summary of a second",
        "message discarded, summary of a second",
        "message buried",
    ]
    assert lines[10]["messages"] == 20
    assert lines[10]["causes"] == [
        {"error_type": "Http422", "reason": "Refused", "messages": 15},
        {"error_type": "Http400", "reason": "Refused", "messages": 5},
    ]
    assert (lines[11]["messages"], lines[11]["log_level"]) == (1, "warning")


def test_a_second_that_has_logged_all_of_its_messages_has_no_summary() -> None:
    def write(log: DispositionLog, timers: Timers) -> None:
        log.record(BURIED, failed("orders/0/7"), "Refused")
        timers.run_next()
        assert not timers.waiting
        log.record(BURIED, failed("orders/0/8"), "Refused")
        assert len(timers.waiting) == 1

    assert [line["id"] for line in logged(write)] == ["orders/0/7", "orders/0/8"]
