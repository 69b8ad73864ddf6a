"""The rate limit of requests to the API server."""

import time

import pytest

from deadletter.kube import RequestThrottle


def test_a_paused_throttle_lets_no_request_through() -> None:
    throttle = RequestThrottle(rate=100, burst=200)
    now = time.monotonic()
    assert throttle._wait(now) == 0
    throttle.pause(5)
    assert throttle._wait(now + 1) > 3
    assert throttle._wait(now + 60) == 0


def test_a_burst_is_followed_by_the_rate() -> None:
    throttle = RequestThrottle(rate=10, burst=3)
    assert [throttle._wait(1.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
    assert throttle._wait(1.11) == 0
