"""Fixtures: a namespace on a real API server, and an operator process that watches it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bed.control import ApiServer
from tests.controller.operator_process import KubeNamespace, OperatorProcess, create_kubeconfig, running_operator


@pytest.fixture
def kube(crds: ApiServer, namespace: str) -> KubeNamespace:
    """The test's namespace."""
    return KubeNamespace(crds, namespace)


@pytest.fixture
def kubeconfig(crds: ApiServer, namespace: str, tmp_path: Path) -> Path:
    """A kubeconfig with the rights that the chart grants in the test's namespace."""
    return create_kubeconfig(crds, namespace, tmp_path)


@pytest.fixture
def start(kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Start operators with the given settings; they are stopped at the end of the test."""
    log = tmp_path / "operator.log"
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running_operator(kubeconfig, namespace, log, **settings))


@pytest.fixture
def operator(start: Callable[..., OperatorProcess]) -> OperatorProcess:
    """One operator that is ready."""
    return start().wait_until_ready()
