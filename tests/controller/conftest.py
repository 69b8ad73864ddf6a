"""An operator of the test's own, in a namespace of the test's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bed.control import ApiServer
from tests.controller.operators import Operator, Place, rights, running


@pytest.fixture
def place(crds: ApiServer, namespace: str) -> Place:
    """The test's namespace."""
    return Place(crds, namespace)


@pytest.fixture
def kubeconfig(crds: ApiServer, namespace: str, tmp_path: Path) -> Path:
    """The chart's rights in the test's namespace."""
    return rights(crds, namespace, tmp_path)


@pytest.fixture
def start(kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Start operators with settings of the test's own; they end with the test."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(running(kubeconfig, namespace, tmp_path / "operator.log", **more))


@pytest.fixture
def operator(start: Callable[..., Operator]) -> Operator:
    """One operator, listening."""
    return start().until_ready()
