"""Run the Argo CD health check of the docs on statuses as the operator writes them."""

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
from tests.plan.builders import NOW, box_stats, connection, partition_progress, plain_queue, replay

PAGE = (places.REPOSITORY / "docs" / "guides" / "gitops.md").read_text()
(CHECK,) = (text for language, text in BLOCK.findall(PAGE) if language == "lua")
FACTS = QueueFacts(connection=connection(), stats=box_stats(0), now=NOW)
UNREACHABLE = Finding(Reason.BrokerUnreachable, "nobody answers", True, BOXES_READY)
SELF_REFERENCE = Finding(Reason.SelfReference, "a queue cannot reference itself", is_transient=False)
STALLED = queue_status(plain_queue(), FACTS, SELF_REFERENCE)
READY = queue_status(plain_queue(), FACTS, None)
DEGRADED = queue_status(plain_queue(alerts={"depth": 1}), replace(FACTS, stats=box_stats(2, NOW)), None)


def running_replay(**more: Any) -> dict[str, Any]:
    return replay_status(replay(), ReplayFacts(queue=plain_queue(), connection=connection(), now=NOW, **more), None)


def lua(value: Any) -> str:
    """Write a value as a Lua literal."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


def health(status: dict[str, Any] | None, generation: int = 1) -> tuple[str, str]:
    """Return the status and message that Argo CD, which uses Lua 5.1, would show."""
    tools.need("lua5.1")
    obj = {"metadata": {"generation": generation}} | ({} if status is None else {"status": status})
    program = f"obj = {lua(obj)}\nhealth = (function()\n{CHECK}\nend)()\nprint(health.status)\nprint(health.message)"
    command = [tools.path("lua5.1"), "-e", program]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return lines[0], lines[1]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "Progressing"),
        (READY, "Healthy"),
        (DEGRADED, "Healthy"),
        (queue_status(plain_queue(), FACTS, UNREACHABLE), "Progressing"),
        (STALLED, "Degraded"),
        (running_replay(), "Progressing"),
        (running_replay(progress=(partition_progress(phase="Finished", matched=1),)), "Healthy"),
        (running_replay(progress=(partition_progress(phase="Failed", reason="FailureShareExceeded"),)), "Degraded"),
        (
            replay_status(replay(suspend=True), ReplayFacts(queue=plain_queue(), connection=connection()), None),
            "Suspended",
        ),
    ],
)
def test_argo_cd_shows_what_the_conditions_say(status: dict[str, Any] | None, expected: str) -> None:
    assert health(status)[0] == expected


def test_a_change_that_the_operator_has_not_seen_is_not_called_healthy() -> None:
    assert health(READY, generation=2)[0] == "Progressing"


def test_the_message_is_shown() -> None:
    assert health(STALLED)[1] == "a queue cannot reference itself"
    assert health(queue_status(plain_queue(), FACTS, UNREACHABLE))[1] == "nobody answers"
