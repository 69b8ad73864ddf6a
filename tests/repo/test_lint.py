"""The floors of the house: a wrong import fails the lint."""

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
    "a worker calls Kubernetes": ("workers/planted.py", "import kubernetes", "Kubernetes client"),
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "operator", tmp_path / "operator", ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def lint(house: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(house / "operator")}
    return subprocess.run(
        [program, "--no-cache"], cwd=house, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(("file", "line", "contract"), PLANTED.values(), ids=list(PLANTED))
def test_a_wrong_import_is_refused(house: Path, file: str, line: str, contract: str) -> None:
    planted = house / "operator" / "deadletter" / file
    planted.write_text(f'"""Planted."""\n\n{line}\n')
    done = lint(house)
    broken = [said for said in done.stdout.splitlines() if said.endswith("BROKEN")]
    assert done.returncode != 0, done.stdout + done.stderr
    assert any(contract in said for said in broken), done.stdout + done.stderr


def test_the_house_as_it_is_keeps_its_floors(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_asks_all_four() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert [
        tool for tool in ("ruff check", "ruff format", "mypy", "lint-imports", "deptry") if tool not in recipe
    ] == []
