"""Deliveries as other systems describe them, each with its policy from `examples/`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from deadletter.brokers.errors import BoxRefused
from deadletter.core.dialects.reader import read_letter
from deadletter.core.letters import Message, Place
from tests.workers.couriers import MemoryQueue, courier_assignment, message
from tests.workers.http_service import Received, serving, until

EXAMPLES = Path(__file__).parents[2] / "examples"


def policy(name: str, **changes: Any) -> dict[str, Any]:
    """The RetryPolicy of an example, with short waits and without a circuit breaker."""
    documents = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    spec = next(document["spec"] for document in documents if document["kind"] == "RetryPolicy")
    return {**spec, "circuitBreaker": {"enabled": False}, **changes}


SHORT = {"strategy": "Fixed", "initial": "10ms"}


async def settled(
    answer, retry_policy: dict[str, Any], *messages: Message, **more: Any
) -> tuple[MemoryQueue, list[Received]]:
    queue = MemoryQueue()
    queue.send(*(messages or (message(),)))
    async with (
        serving(answer) as service,
        queue.courier(courier_assignment(service.url, policy=retry_policy, **more)),
    ):
        await until(lambda: queue.is_settled)
    return queue, service.received


async def test_pipestream_retries_infrastructure_failures_and_buries_in_the_topic_of_the_node():
    boxes = {"boxes": {"source": "orders", "retry": "retry", "dead": "other", "ledger": "other.ledger"}}
    queue, received = await settled(lambda _: web.Response(status=503), policy("pipestream", backoff=SHORT), **boxes)
    assert len(received) == 3
    (envelope,) = queue.envelopes("other")
    assert (envelope.attempts, envelope.reason) == (3, "AttemptsExhausted")
    assert not queue.buried("dead")


async def test_pipestream_treats_a_logical_failure_as_success():
    answer = lambda _: web.json_response({"success": False, "error": "invalid PDF"})  # noqa: E731
    queue, received = await settled(answer, policy("pipestream", backoff=SHORT))
    assert len(received) == 1
    assert not queue.buried()


def test_pipestreams_own_protobuf_letters_are_read():
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    value = field(1, b"\x0a\x03doc") + field(2, b"TIMEOUT") + field(3, b"module slow") + field(7, b"node.in")
    letter = read_letter(Message(b"k", value), Place("dlq.prod.node", 0, 0), "pipestream", read_values=True)
    assert (letter.envelope.failure.type, letter.envelope.origin.topic) == ("TIMEOUT", "node.in")


async def test_design_002_waits_as_configured_and_moves_the_offset_after_the_letter():
    queue, received = await settled(lambda _: web.Response(status=500), policy("design-002"))
    assert [one.headers["Dlq-Attempt"] for one in received] == ["1", "2", "3"]
    (envelope,) = queue.envelopes()
    assert envelope.attempts == 3
    assert (envelope.failed_at or 0) - (
        envelope.first_failed_at or 0
    ) >= 2_500  # 1 s, then 2 s, and clocks are not exact
    (letter,) = queue.buried()
    assert (letter.key, letter.value) == (b"key", b"body")


async def test_querator_gives_up_after_its_attempts_and_moves_the_item_to_the_one_dead_queue():
    routes = [{"match": "true", "box": "other"}]
    queue, received = await settled(
        lambda _: web.Response(status=500), policy("querator", backoff=SHORT), routes=routes
    )
    assert len(received) == 5
    assert [one.reason for one in queue.envelopes("other")] == ["AttemptsExhausted"]
    assert not queue.buried("dead")


async def test_querator_moves_an_item_past_its_deadline_whatever_its_attempts():
    backoff = {"strategy": "Fixed", "initial": "100ms"}
    retry_policy = policy("querator", maxAge="20ms", maxAttempts=1000, backoff=backoff)
    queue, received = await settled(lambda _: web.Response(status=500), retry_policy)
    assert len(received) == 2
    assert [one.reason for one in queue.envelopes()] == ["Expired"]


async def test_querator_without_a_dead_queue_deletes_with_a_warning(capsys: pytest.CaptureFixture[str]):
    retry_policy = policy("querator", backoff=SHORT, onExhausted="Discard")
    queue, received = await settled(lambda _: web.Response(status=500), retry_policy)
    assert len(received) == 5
    assert not queue.buried()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "message discarded" in line)
    assert "orders/0/0" in line
    assert "AttemptsExhausted" in line


async def test_querator_deletes_the_item_only_after_the_letter_is_written():
    queue = MemoryQueue()
    queue.send(message())
    queue.server.refuse["dead"] = BoxRefused("read-only")
    retry_policy = policy("querator", maxAttempts=1)
    async with serving(lambda _: web.Response(status=500)) as service:
        async with queue.courier(courier_assignment(service.url, policy=retry_policy)):
            await until(lambda: queue.pause_reasons == ["BoxRefused"])
        assert not queue.is_settled
        del queue.server.refuse["dead"]
        async with queue.courier(courier_assignment(service.url, policy=retry_policy)):
            await until(lambda: queue.is_settled)
    assert len(queue.buried()) == 1


async def test_weakincentives_includes_and_excludes_errors_by_type():
    tries: dict[bytes, int] = {}

    def answer(one: Received) -> web.Response:
        tries[one.body] = tries.get(one.body, 0) + 1
        if one.body == b"include":
            return web.Response(status=500, headers={"Dlq-Error-Type": "ValidationError"})
        if one.body == b"exclude" and tries[one.body] < 9:
            return web.Response(status=500, headers={"Dlq-Error-Type": "ConnectionError"})
        return web.Response(status=500 if one.body == b"plain" else 200)

    messages = [message(name, name) for name in ("include", "exclude", "plain")]
    queue, _ = await settled(answer, policy("weakincentives", backoff=SHORT), *messages)
    assert tries == {b"include": 1, b"exclude": 9, b"plain": 5}
    reasons = {one.value: envelope.reason for one, envelope in zip(queue.buried(), queue.envelopes(), strict=True)}
    assert reasons == {b"include": "RuleMatched", b"plain": "AttemptsExhausted"}


async def test_weakincentives_stops_when_its_error_budget_is_spent():
    queue = MemoryQueue()
    queue.send(*(message(f"{n}", f"k{n}") for n in range(10)))
    retry_policy = policy("weakincentives", maxAttempts=1, errorBudget={"letters": 3, "per": "10m"})
    async with (
        serving(lambda _: web.Response(status=500)) as service,
        queue.courier(courier_assignment(service.url, policy=retry_policy)),
    ):
        await until(lambda: queue.pause_reasons == ["ErrorBudgetSpent"])
        await until(lambda: len(queue.buried()) == 3)
    assert len(queue.buried()) == 3


async def test_mahavishnu_has_a_policy_for_every_kind_of_failure():
    codes = {"network": 0, "transient": 503, "resource": 429, "permission": 403, "validation": 422, "permanent": 410}

    def answer(one: Received) -> web.Response:
        code = codes[one.body.decode()]
        if not code:
            one.hang_up()
        return web.Response(status=code or 200)

    queue = MemoryQueue()
    queue.send(*(message(name, name) for name in codes))
    async with (
        serving(answer) as service,
        queue.courier(courier_assignment(service.url, policy=policy("mahavishnu"))),
    ):
        await until(lambda: len(queue.parked) == 3 and len(queue.buried()) == 3)
        waits = {
            (one.message.value or b"").decode(): one.due_at - queue.server.clock()
            for one in queue.server.boxes["retry"].waiting.values()
        }
    assert {one.value for one in queue.buried()} == {b"permission", b"validation", b"permanent"}
    assert all(envelope.attempts == 1 for envelope in queue.envelopes())
    assert 0 < waits["network"] <= 60_000
    assert 0 < waits["transient"] <= 60_000
    assert 60_000 < waits["resource"] <= 300_000
