"""The token bucket: tokens arrive each second and are granted before a batch."""

import asyncio

import pytest

from deadletter.workers.rate_limit import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(rate, monkeypatch):
    clock = Clock()

    async def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr("deadletter.workers.rate_limit.asyncio.sleep", sleep)
    return TokenBucket(rate, asyncio.Event(), clock), clock


async def test_without_a_rate_everything_is_granted(monkeypatch):
    pace, clock = paced(lambda: None, monkeypatch)
    assert await pace.acquire(2_000) == 2_000
    assert clock.now == 0


async def test_a_rate_is_kept_over_time(monkeypatch):
    pace, clock = paced(lambda: 100, monkeypatch)
    granted = 0
    while granted < 1_000:
        granted += await pace.acquire(2_000)
    assert 1_000 <= granted <= 100 * clock.now + 1
    assert clock.now <= 10.6


async def test_unused_tokens_are_returned(monkeypatch):
    pace, clock = paced(lambda: 10, monkeypatch)
    granted = await pace.acquire(100)
    pace.refund(granted)
    before = clock.now
    assert await pace.acquire(granted) == granted
    assert clock.now == before


async def test_a_slow_rate_makes_progress(monkeypatch):
    pace, clock = paced(lambda: 1, monkeypatch)
    assert [await pace.acquire(5) for _ in range(3)] == [1, 1, 1]
    assert 2.9 <= clock.now <= 3.1


async def test_a_stop_ends_the_wait():
    stop = asyncio.Event()
    stop.set()
    assert await TokenBucket(lambda: 1, stop).acquire(5) == 0


@pytest.mark.parametrize("before", [None, 10_000])
async def test_a_lower_rate_applies_at_once_despite_unused_tokens(monkeypatch, before):
    rates = [before]
    pace, clock = paced(lambda: rates[0], monkeypatch)
    for _ in range(50):  # few letters of many are selected
        pace.refund(await pace.acquire(2_000) - 10)
    rates[0], begun, granted = 20, clock.now, 0
    while clock.now < begun + 10:
        granted += await pace.acquire(2_000)
    assert granted <= 20 * (clock.now - begun) + 20
