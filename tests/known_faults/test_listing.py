"""The table in README.md lists exactly the faults that tests of this folder mark."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent


def listed() -> list[tuple[str, str]]:
    """Return id and file of each line of the table."""
    rows = re.findall(
        r"^\| ([A-Z][A-Z0-9-]+) \| .+ \| ([a-z]+) \| .+ \|$", (HERE / "README.md").read_text(), re.MULTILINE
    )
    return sorted(rows)


def marked() -> list[tuple[str, str]]:
    """Return id and file of each marker."""
    found = []
    for file in HERE.glob("test_*_known_faults.py"):
        kind = file.name.removeprefix("test_").removesuffix("_known_faults.py")
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        names = [call.args[0] for call in calls if getattr(call.func, "id", "") == "known_fault"]
        found += [(name.value, kind) for name in names if isinstance(name, ast.Constant)]
    return sorted(found)


def test_every_marked_fault_is_listed_once_with_its_file() -> None:
    assert len({name for name, _ in marked()}) == len(marked())
    assert marked() == listed()
