"""Whose words are believed, whatever their clocks say."""

import pytest

from deadletter.core.heartbeats import HeartbeatTracker, WorkerStatus

NOW = 1_700_000_000_000
MINUTE = 60_000


def heartbeat(pod: str, at: int) -> WorkerStatus:
    return WorkerStatus(pod, at=at)


@pytest.mark.parametrize("off", [-5 * MINUTE, 0, 5 * MINUTE])
def test_who_speaks_every_half_minute_is_believed_whatever_its_clock_says(off: int) -> None:
    hearing = HeartbeatTracker()
    hearing.alive([heartbeat("pod", NOW + off)], NOW)
    for later in range(30_000, 5 * MINUTE, 30_000):
        word = heartbeat("pod", NOW + off + later)
        assert hearing.alive([word], NOW + later) == (word,)
        assert hearing.alive([word], NOW + later + 20_000) == (word,)


@pytest.mark.parametrize("off", [-5 * MINUTE, 0, 5 * MINUTE])
def test_who_fell_silent_is_believed_no_longer_than_a_minute_and_a_half(off: int) -> None:
    hearing = HeartbeatTracker()
    hearing.alive([heartbeat("pod", NOW + off)], NOW)
    last = heartbeat("pod", NOW + off + 1000)
    assert hearing.alive([last], NOW + 1000) == (last,)
    assert hearing.alive([last], NOW + 91_000) == (last,)
    assert hearing.alive([last], NOW + 91_001) == ()


def test_an_old_word_that_was_there_before_us_is_not_believed() -> None:
    fresh, old = heartbeat("fresh", NOW - 1000), heartbeat("old", NOW - 10 * MINUTE)
    assert HeartbeatTracker().alive([fresh, old], NOW) == (fresh,)


def test_who_took_its_word_back_is_forgotten() -> None:
    hearing = HeartbeatTracker()
    hearing.alive([heartbeat("pod", NOW)], NOW)
    assert hearing.alive([], NOW + 1000) == ()
    assert hearing.alive([heartbeat("pod", NOW - 10 * MINUTE)], NOW + 2000) == ()
