"""The operator is killed after its k-th write: whichever it was, the end is that of an undisturbed life."""

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
Life = Callable[[int], tuple[dict[str, Any], bool]]


@pytest.fixture
def life(crds: ApiServer, redis: str, tmp_path: Path) -> Life:
    """One life, the operator killed after its so-manieth write (0: never); gives its end, and was it killed?"""

    def lives(kill_at: int) -> tuple[dict[str, Any], bool]:
        namespace = f"sieve-{uuid.uuid4().hex[:8]}"
        crds.kubectl("create", "namespace", namespace)
        kube, source = KubeNamespace(crds, namespace), f"orders-{uuid.uuid4().hex[:8]}"
        reached = threading.Event()

        def at(number: int) -> None:
            if number == kill_at and operator.process is not None:
                operator.process.send_signal(signal.SIGKILL)
                reached.set()

        with ApiProxy(crds, at) as proxy:
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

    return lives


def start_again(operator: OperatorProcess, killed: threading.Event) -> None:
    """A killed operator is started again, as its Deployment would."""
    killed.wait()
    dead = operator.process
    if dead is not None and not operator.ending:
        dead.wait(60)
        operator.start()


@pytest.mark.timeout(600)
def test_a_killed_operator_ends_where_an_undisturbed_one_does(life: Life) -> None:
    undisturbed, _ = life(0)
    for kill_at in (3, 8, 15):
        assert life(kill_at) == (undisturbed, True)


@pytest.mark.kill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(1, SHARES + 1))
def test_killed_after_every_write(life: Life, share: int) -> None:
    """Every k-th write there is: a life that is over before its operator is killed was the last."""
    undisturbed, _ = life(0)
    kill_at, killed = share, True
    while killed:
        state, killed = life(kill_at)
        assert state == undisturbed, kill_at
        print(f"killed after write {kill_at}" if killed else f"fewer than {kill_at} writes")
        kill_at += SHARES
