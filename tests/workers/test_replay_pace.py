"""The pace: tokens come by the second and are handed out before a batch."""

import asyncio

from deadletter.workers.replayer.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(rate, monkeypatch):
    clock = Clock()

    async def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr("deadletter.workers.replayer.pace.asyncio.sleep", sleep)
    return Pace(rate, asyncio.Event(), clock), clock


async def test_without_a_rate_everything_is_granted(monkeypatch):
    pace, clock = paced(lambda: None, monkeypatch)
    assert await pace.take(2_000) == 2_000
    assert clock.now == 0


async def test_a_rate_is_kept_over_time(monkeypatch):
    pace, clock = paced(lambda: 100, monkeypatch)
    granted = 0
    while granted < 1_000:
        granted += await pace.take(2_000)
    assert 1_000 <= granted <= 100 * clock.now + 1
    assert clock.now <= 10.6


async def test_tokens_not_used_come_back(monkeypatch):
    pace, clock = paced(lambda: 10, monkeypatch)
    granted = await pace.take(100)
    pace.give_back(granted)
    before = clock.now
    assert await pace.take(granted) == granted
    assert clock.now == before


async def test_a_slow_rate_still_moves(monkeypatch):
    pace, clock = paced(lambda: 1, monkeypatch)
    assert [await pace.take(5) for _ in range(3)] == [1, 1, 1]
    assert 2.9 <= clock.now <= 3.1


async def test_a_stop_ends_the_waiting():
    stop = asyncio.Event()
    stop.set()
    assert await Pace(lambda: 1, stop).take(5) == 0
