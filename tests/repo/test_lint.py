"""The layers of the package: a wrong import fails `make lint`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.places import REPOSITORY

PLANTED = {
    "core reads the API": ("core/planted.py", "from deadletter.api import assignments", "Layers"),
    "plan calls a broker": ("plan/planted.py", "from deadletter.brokers import contract", "Layers"),
    "a worker calls a handler": ("workers/planted.py", "import deadletter.controller", "Layers"),
    "core waits": ("core/planted.py", "import asyncio", "Pure layers"),
    "a handler calls a driver": ("controller/planted.py", "import aiokafka", "driver stays"),
    "net imports a broker": ("net/planted.py", "from deadletter.brokers import errors", "Layers"),
    "a worker calls Kubernetes": ("workers/planted.py", "import kubernetes", "Kubernetes client"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the package and its settings, into which a test writes a wrong import."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "operator", tmp_path / "operator", ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(source / "operator")}
    return subprocess.run(
        [program, "--no-cache"], cwd=source, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(("file", "line", "contract"), PLANTED.values(), ids=list(PLANTED))
def test_a_wrong_import_is_refused(source: Path, file: str, line: str, contract: str) -> None:
    planted = source / "operator" / "deadletter" / file
    planted.write_text(f'"""Planted."""\n\n{line}\n')
    done = lint(source)
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert done.returncode != 0, done.stdout + done.stderr
    assert any(contract in line for line in broken), done.stdout + done.stderr


def test_the_package_keeps_its_layers(source: Path) -> None:
    done = lint(source)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_runs_every_checker() -> None:
    recipes = (REPOSITORY / "Makefile").read_text().partition("\nruff:")[2].partition("\ncheck:")[0]
    tools = ("ruff check", "ruff format", "mypy", "lint-imports", "deptry")
    assert [tool for tool in tools if tool not in recipes] == []
    assert "\nlint: ruff " in recipes
