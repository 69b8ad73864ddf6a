"""Metrics of replayers and redrivers after work on a real Kafka and a real Redis."""

import urllib.request
import uuid
from asyncio import to_thread

import pytest
from prometheus_client import REGISTRY

from deadletter.brokers.connect import open_broker
from deadletter.workers import metrics
from deadletter.workers.health import ProbeHandlers, serve_probes
from tests.workers.redrive_stage import RedriveStage
from tests.workers.replay_pods import LOCAL_NETWORKS, connection
from tests.workers.replay_scene import Scene, letter


@pytest.fixture(params=["kafka", "redis"])
async def scene(request):
    spec = connection(request.param, request.getfixturevalue(request.param))
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", spec)
    async with open_broker(scene.assignment().broker, lambda *_: b"", LOCAL_NETWORKS) as broker:
        scene.broker = broker
        await scene.build()
        await scene.bury(*(letter(number, scene.name) for number in range(6)))
        yield scene


async def read_metrics(registry) -> str:
    async with serve_probes(ProbeHandlers(registry=registry), 0, "127.0.0.1") as port:
        response = await to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics", timeout=60)
        return response.read().decode()


async def test_a_replay_counts_its_letters_by_result(scene):
    assignment = scene.assignment(select={"where": "payload.n < 4 || payload.missing == 1"})
    assignment = assignment.model_copy(update={"queue": scene.name})
    await scene.run(assignment)
    await scene.run(assignment)
    text = await read_metrics(metrics.REPLAY_REGISTRY)
    where = f'namespace="test",queue="{scene.name}",replay="replay"'
    assert f'dlq_replay_letters_total{{{where},result="replayed"}} 4.0' in text
    assert f'dlq_replay_letters_total{{{where},result="skipped"}} 2.0' in text
    assert "process_resident_memory_bytes" in text


async def test_exhausted_letters_are_shown_until_they_are_settled(scene):
    stage = RedriveStage(scene, queue=scene.name, policy={"maxAttempts": 1})
    exhausted = f'dlq_redrive_exhausted{{namespace="test",queue="{scene.name}"}}'
    assert await stage.run_after(60) == 0
    assert f"{exhausted} 6.0" in await read_metrics(REGISTRY)
    await scene.replay(action="Discard", select={"limit": 2})
    await stage.run_after(60)
    assert f"{exhausted} 4.0" in await read_metrics(REGISTRY)


async def test_a_redriver_counts_rounds_and_shows_why_it_is_paused(scene):
    stage = RedriveStage(scene, queue=scene.name)
    stage.gate = "Suspended"
    await stage.run_after(60)
    where = f'namespace="test",queue="{scene.name}"'
    paused = f'dlq_redrive_paused{{{where},reason="Suspended"}}'
    text = await read_metrics(REGISTRY)
    assert f"{paused} 1.0" in text
    assert f"dlq_redrive_waiting{{{where}}} 6.0" in text
    stage.gate = ""
    assert await stage.run_after(60) == 6
    text = await read_metrics(REGISTRY)
    assert f"{paused} 0.0" in text
    assert f'dlq_redrive_letters_total{{{where},round="1"}} 6.0' in text
