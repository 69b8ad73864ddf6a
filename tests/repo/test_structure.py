"""The structure of the package: what keeps files easy to find and short enough to read."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.bed.places import REPOSITORY

SOURCE = REPOSITORY / "operator"
PACKAGE = SOURCE / "deadletter"
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MIN_SHARED_LINES = 30  # a shorter module with a single importer belongs to its importer


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    """Text and syntax tree of every module, by its path in the package."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def dotted(name: str) -> str:
    """Name of the module in a file, as an import statement writes it."""
    return ".".join(("deadletter", *Path(name).with_suffix("").parts)).removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield every module that a module imports; `from package import name` may mean either of the two."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for name, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_files_are_short_enough_to_read() -> None:
    lengths = {name: len(text.splitlines()) for name, (text, _) in modules().items()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short_enough_to_read() -> None:
    long = [
        f"{name}:{node.lineno} {node.name}"
        for name, (_, tree) in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_a_short_module_has_several_importers() -> None:
    importers = defaultdict(set)
    for name, (_, tree) in modules().items():
        for module in imported(tree):
            importers[module].add(name)
    lonely = [
        name
        for name, (text, _) in modules().items()
        if Path(name).name not in {"__init__.py", "__main__.py"}
        and len(text.splitlines()) < MIN_SHARED_LINES
        and len(importers[dotted(name)] - {name}) == 1
    ]
    assert lonely == []
