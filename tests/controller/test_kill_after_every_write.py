"""Kill the operator after its k-th write, for every k: the final state is that of an undisturbed run."""

import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed.control import ApiServer
from tests.controller.api_proxy import ApiProxy
from tests.controller.lifecycle import create_and_change_everything, delete_everything
from tests.controller.operator_process import KubeNamespace, OperatorProcess, create_kubeconfig, running_operator

SHARES = 8
RunAndKill = Callable[[int], tuple[dict[str, Any], bool]]


@pytest.fixture
def run(crds: ApiServer, redis: str, tmp_path: Path) -> RunAndKill:
    """Run the lifecycle and kill the operator after write `kill_at` (0: never)."""

    def run_and_kill(kill_at: int) -> tuple[dict[str, Any], bool]:
        namespace = f"kill-{uuid.uuid4().hex[:8]}"
        crds.kubectl("create", "namespace", namespace)
        kube, source = KubeNamespace(crds, namespace), f"orders-{uuid.uuid4().hex[:8]}"
        reached = threading.Event()

        def on_write(number: int) -> None:
            if number == kill_at and operator.process is not None:
                operator.process.send_signal(signal.SIGKILL)
                reached.set()

        with ApiProxy(crds, on_write) as proxy:
            config = proxy.kubeconfig(create_kubeconfig(crds, namespace, tmp_path))
            with running_operator(config, namespace, tmp_path / f"{kill_at}.log") as operator:
                supervisor = threading.Thread(target=start_again, args=(operator, reached), daemon=True)
                supervisor.start()
                state = create_and_change_everything(kube, redis, source)
                delete_everything(kube, redis, source)
                killed, operator.ending = reached.is_set(), True
                reached.set()
                supervisor.join(60)
        crds.kubectl("delete", "namespace", namespace, "--wait=false")
        return state, killed

    return run_and_kill


def start_again(operator: OperatorProcess, killed: threading.Event) -> None:
    """Start a killed operator again, as its Deployment would."""
    killed.wait()
    dead = operator.process
    if dead is not None and not operator.ending:
        dead.wait(60)
        operator.start()


@pytest.mark.timeout(600)
def test_a_killed_operator_reaches_the_state_of_an_undisturbed_one(run: RunAndKill) -> None:
    undisturbed, _ = run(0)
    for kill_at in (3, 8, 15):
        assert run(kill_at) == (undisturbed, True)


@pytest.mark.kill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(1, SHARES + 1))
def test_killed_after_every_write(run: RunAndKill, share: int) -> None:
    """Try every k of this share, until a run ends before the operator could be killed."""
    undisturbed, _ = run(0)
    kill_at, killed = share, True
    while killed:
        state, killed = run(kill_at)
        assert state == undisturbed, kill_at
        print(f"killed after write {kill_at}" if killed else f"fewer than {kill_at} writes")
        kill_at += SHARES
