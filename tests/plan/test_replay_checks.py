"""The checks of a Replay."""

from deadletter.plan.facts import ReplayFacts
from deadletter.plan.findings import first_finding
from deadletter.plan.replay_checks import REPLAY_CHECKS
from tests.plan.builders import ready_queue, replay, replay_facts


def facts_of(dialect: str) -> ReplayFacts:
    return replay_facts(queue=ready_queue(dead={"name": "x", "adopt": True, "dialect": dialect}))


def test_an_unknown_origin_is_reported_with_a_remedy() -> None:
    found = first_finding(REPLAY_CHECKS, replay(), facts_of("cronsumer"))
    assert found is not None
    assert found.message == (
        "Letters of dialect cronsumer do not name the topic they came from; "
        "set spec.dead.origin of DeadLetterQueue orders."
    )
    found = first_finding(REPLAY_CHECKS, replay(canary={"steps": [1]}, verify={}), facts_of("watermill"))
    assert found is not None
    assert found.message == (
        "spec.canary: letters of dialect watermill do not name the offset they came from, so those that fail again "
        "cannot be recognised; create a Replay without canary and verify."
    )
