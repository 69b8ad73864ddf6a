"""Tests of heartbeat tracking with skewed clocks."""

import pytest

from deadletter.core.heartbeats import HeartbeatTracker, WorkerStatus, stored_fields

NOW = 1_700_000_000_000
MINUTE = 60_000


def heartbeat(pod: str, at: int) -> WorkerStatus:
    return WorkerStatus(pod, at=at)


@pytest.mark.parametrize("off", [-5 * MINUTE, 0, 5 * MINUTE])
def test_a_worker_with_regular_heartbeats_is_alive_despite_clock_skew(off: int) -> None:
    tracker = HeartbeatTracker()
    tracker.alive([heartbeat("pod", NOW + off)], NOW)
    for later in range(30_000, 5 * MINUTE, 30_000):
        status = heartbeat("pod", NOW + off + later)
        assert tracker.alive([status], NOW + later) == (status,)
        assert tracker.alive([status], NOW + later + 20_000) == (status,)


@pytest.mark.parametrize("off", [-5 * MINUTE, 0, 5 * MINUTE])
def test_a_silent_worker_is_dead_after_the_ttl(off: int) -> None:
    tracker = HeartbeatTracker()
    tracker.alive([heartbeat("pod", NOW + off)], NOW)
    last = heartbeat("pod", NOW + off + 1000)
    assert tracker.alive([last], NOW + 1000) == (last,)
    assert tracker.alive([last], NOW + 91_000) == (last,)
    assert tracker.alive([last], NOW + 91_001) == ()


def test_an_old_heartbeat_at_the_first_look_is_dead() -> None:
    fresh, old = heartbeat("fresh", NOW - 1000), heartbeat("old", NOW - 10 * MINUTE)
    assert HeartbeatTracker().alive([fresh, old], NOW) == (fresh,)


def test_a_worker_that_removed_its_heartbeat_is_forgotten() -> None:
    tracker = HeartbeatTracker()
    tracker.alive([heartbeat("pod", NOW)], NOW)
    assert tracker.alive([], NOW + 1000) == ()
    assert tracker.alive([heartbeat("pod", NOW - 10 * MINUTE)], NOW + 2000) == ()


def test_fields_that_older_releases_do_not_know_are_stored_only_if_set() -> None:
    assert "deleted" not in stored_fields(heartbeat("pod", NOW))
    status = WorkerStatus("pod", at=NOW, deleted=7, deleted_at=NOW - 1)
    assert (stored_fields(status)["deleted"], stored_fields(status)["deleted_at"]) == (7, NOW - 1)
    assert WorkerStatus(**stored_fields(status)) == status
