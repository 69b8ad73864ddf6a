"""What makes /healthz and /readyz fail."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.controller.health import liveness_problem, readiness_problem
from tests.controller.contexts import make_context


def test_liveness_names_the_loop_that_is_stuck() -> None:
    def context(swept: float, resynced: float, reconciled: float, waiting: int) -> Any:
        return SimpleNamespace(
            settings=SimpleNamespace(sweep_seconds=10, rejudge_seconds=300),
            liveness=SimpleNamespace(swept_at=swept, resynced_at=resynced, reconciled_at=reconciled),
            workqueue=range(waiting),
        )

    assert liveness_problem(context(1000, 1000, 0, 0), 1000) == ""
    assert liveness_problem(context(1000, 1000, 990, 5), 1000) == ""
    assert "none was reconciled" in liveness_problem(context(1000, 1000, 0, 5), 1000)
    assert "no sweep" in liveness_problem(context(0, 1000, 1000, 0), 1000)
    assert "resync is overdue" in liveness_problem(context(1000, 0, 1000, 0), 1000)


async def test_an_operator_is_ready_if_its_informers_were_listed_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    context, now = make_context(), time.monotonic()
    assert "have not synced" in readiness_problem(context, now)
    informers = SimpleNamespace(have_synced=True, oldest_listed_at=0.0)
    monkeypatch.setattr(context, "informers", informers)
    assert "last list from the API server is too old" in readiness_problem(context, now)
    informers.oldest_listed_at = now  # the event loop uses the same clock
    assert readiness_problem(context, now) == ""
    context.liveness.swept_at = now - 10_000
    assert "no sweep" in readiness_problem(context, now)
