"""The health check that the docs give to Argo CD, run on statuses as the operator writes them."""

import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.plan.facts import QueueFacts, ReplayFacts
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import queue_status
from deadletter.plan.replay_status import replay_status
from tests.bed import places, tools
from tests.docs.commands import BLOCK
from tests.plan.builders import NOW, connection, plain_queue, box_stats, replay, partition_progress

PAGE = (places.REPOSITORY / "docs" / "guides" / "gitops.md").read_text()
(CHECK,) = (text for language, text in BLOCK.findall(PAGE) if language == "lua")
SEEN = QueueFacts(connection=connection(), stats=box_stats(0), now=NOW)
AWAY = Finding(Reason.BrokerUnreachable, "nobody answers", True, BOXES_READY)
NEVER = Finding(Reason.SelfReference, "a queue cannot reference itself", is_transient=False)
CIRCLED = queue_status(plain_queue(), SEEN, NEVER)
WELL = queue_status(plain_queue(), SEEN, None)
MANY = queue_status(plain_queue(alerts={"depth": 1}), replace(SEEN, stats=box_stats(2, NOW)), None)


def ran(**more: Any) -> dict[str, Any]:
    return replay_status(replay(), ReplayFacts(queue=plain_queue(), connection=connection(), now=NOW, **more), None)


def lua(value: Any) -> str:
    """A value as Lua writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


def health(status: dict[str, Any] | None, generation: int = 1) -> tuple[str, str]:
    """What Argo CD, whose Lua is 5.1, would show."""
    tools.need("lua5.1")
    obj = {"metadata": {"generation": generation}} | ({} if status is None else {"status": status})
    program = f"obj = {lua(obj)}\nhealth = (function()\n{CHECK}\nend)()\nprint(health.status)\nprint(health.message)"
    command = [tools.path("lua5.1"), "-e", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return said[0], said[1]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "Progressing"),
        (WELL, "Healthy"),
        (MANY, "Healthy"),
        (queue_status(plain_queue(), SEEN, AWAY), "Progressing"),
        (CIRCLED, "Degraded"),
        (ran(), "Progressing"),
        (ran(progress=(partition_progress(phase="Finished", matched=1),)), "Healthy"),
        (ran(progress=(partition_progress(phase="Failed", reason="FailureShareExceeded"),)), "Degraded"),
        (replay_status(replay(suspend=True), ReplayFacts(queue=plain_queue(), connection=connection()), None), "Suspended"),
    ],
)
def test_argo_cd_shows_what_the_conditions_say(status: dict[str, Any] | None, expected: str) -> None:
    assert health(status)[0] == expected


def test_a_change_that_the_operator_has_not_seen_is_not_called_healthy() -> None:
    assert health(WELL, generation=2)[0] == "Progressing"


def test_the_reason_is_told() -> None:
    assert health(CIRCLED)[1] == "a queue cannot reference itself"
    assert health(queue_status(plain_queue(), SEEN, AWAY))[1] == "nobody answers"
