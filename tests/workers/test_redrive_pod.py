"""The redriver in a process of its own, as its Deployment runs it: killed, restarted, stopped."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.workers.redrive_stage import RedriveStage
from tests.workers.replay_pods import LOCAL_NETWORKS, TIMEOUT_S, bury_numbers, kind, scene, stack, wait_for_arrivals
from tests.workers.replay_scene import Scene

__all__ = ["kind", "scene", "stack"]  # fixtures

IMMEDIATE_RETRIES = {"maxAttempts": 3, "backoff": {"strategy": "Immediate"}}


async def start(folder: Path, scene: Scene) -> asyncio.subprocess.Process:
    assignment = RedriveStage(scene, allow=LOCAL_NETWORKS, policy=IMMEDIATE_RETRIES).assignment
    (folder / "assignment.json").write_text(assignment.model_dump_json(by_alias=True))
    environment = {
        "DLQ_ASSIGNMENT_DIR": str(folder),
        "DLQ_TERMINATION_LOG": str(folder / "termination"),
        "DLQ_HEALTH_PORT": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = (sys.executable, "-m", "deadletter", "redrive")
    log = (folder / "log").open("ab")
    return await asyncio.create_subprocess_exec(*command, env=os.environ | environment, stderr=log, stdout=log)


async def test_a_killed_redriver_loses_and_repeats_nothing_and_exits_0_when_stopped(scene, tmp_path):
    await bury_numbers(scene, 2_500)  # more than it sends at once
    process = await start(tmp_path, scene)
    await wait_for_arrivals(scene, 1, process)
    process.send_signal(signal.SIGKILL)
    await asyncio.wait_for(process.wait(), TIMEOUT_S)
    assert 0 < len(await scene.numbers()) < 2_500
    process = await start(tmp_path, scene)
    await wait_for_arrivals(scene, 2_500, process)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0, (tmp_path / "log").read_text()[-2_000:]
    assert sorted(await scene.numbers()) == list(range(2_500))
    assert await scene.open_letters() == []
