"""Tests that every API field has an effect: the type checker finds code that reads it.

A field that only validation rules read, or an assignment field that no code in the worker's pod reads, fails here.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mypy import build
from mypy.modulefinder import BuildSource
from mypy.nodes import Expression, MypyFile
from mypy.options import Options
from mypy.traverser import NameAndMemberCollector
from mypy.types import Instance, Type, UnionType, get_proper_type
from pydantic import BaseModel

from deadletter.api import worker_config
from tools.crds import KINDS

POD_MODULES = ("deadletter.workers.", "deadletter.cli.")  # `letters` also runs in the pod
OPERATOR = Path(__file__).parents[2] / "operator"
# Fields that are not read by name, and why.
NOT_READ_BY_NAME = {
    "LetterSelector.all": "a confirmation, which only the rule for a new Archive or Discard needs",
    "Resources.requests": "goes whole into the courier's container",
    "Resources.limits": "goes whole into the courier's container",
}


class Read(NamedTuple):
    """An attribute that is read, and the function that reads it."""

    attribute: str  # Class.name
    reader: str  # module, or for a method of the API its Class.name


class ReaderScopes(ast.NodeVisitor):
    """Map each attribute access of a file to its reader; validation rules of the API do not count as readers."""

    def __init__(self, module: str) -> None:
        self.module, self.is_api = module, module.startswith("deadletter.api.")
        self.scope: list[str] = []
        self.readers: dict[tuple[int, int], str] = {}

    def visit(self, node: ast.AST) -> None:
        """Track class and function names; skip lambdas of the API, which are validation rules."""
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if self.is_api and isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.Attribute) and self.reader:
            self.readers[node.lineno, node.col_offset] = self.reader
        self.scope += [node.name] if named else []  # type: ignore[attr-defined]
        self.generic_visit(node)
        self.scope = self.scope[:-1] if named else self.scope

    @property
    def reader(self) -> str:
        """The module, or inside the API the method or public function."""
        if not self.is_api:
            return self.module
        if len(self.scope) == 1:
            return "" if self.scope[0].startswith("_") or self.scope[0][0].isupper() else self.module
        return ".".join(self.scope[:2])


def _classes(found: Type | None) -> Iterator[str]:
    kind = get_proper_type(found) if found is not None else None
    for one in kind.items if isinstance(kind, UnionType) else [kind]:
        proper = get_proper_type(one) if one is not None else None
        if isinstance(proper, Instance) and proper.type.fullname.startswith("deadletter.api."):
            yield proper.type.name


@cache
def reads() -> tuple[Read, ...]:
    """Return every read of an attribute of an API model in the product."""
    options = Options()
    options.export_types = options.preserve_asts = options.ignore_missing_imports = True
    options.follow_imports, options.incremental, options.cache_dir = "skip", False, "/dev/null"
    options.mypy_path = [str(OPERATOR)]
    paths = (OPERATOR / "deadletter").rglob("*.py")
    files = {path: ".".join(path.relative_to(OPERATOR).with_suffix("").parts) for path in paths}
    sources = [BuildSource(str(path), name.removesuffix(".__init__")) for path, name in files.items()]
    built = build.build(sources, options)
    found: list[Read] = []
    for path, source in zip(files, sources, strict=True):
        scopes = ReaderScopes(source.module)
        scopes.visit(ast.parse(path.read_text()))
        found += _read_in(scopes, built.files[source.module], built.types)
    return tuple(found)


def _read_in(scopes: ReaderScopes, tree: MypyFile, types: dict[Expression, Type]) -> Iterator[Read]:
    collected = NameAndMemberCollector()
    tree.accept(collected)
    for node in collected.member_exprs:
        if reader := scopes.readers.get((node.line, node.column)):
            yield from (Read(f"{name}.{node.name}", reader) for name in _classes(types.get(node.expr)))


def used() -> set[str]:
    """Return the attributes that are read outside the API, or by a method that is itself used."""
    found = {read.attribute for read in reads() if read.reader.startswith("deadletter.")}
    while more := {read.attribute for read in reads() if read.reader in found} - found:
        found |= more
    return found


def _parts(model: Any) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        waiting = [field.annotation]
        while waiting:
            one = waiting.pop()
            waiting += getattr(one, "__args__", ())
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from _parts(one)


def _fields(models: Any) -> set[str]:
    return {f"{part.__name__}.{name}" for model in models for part in _parts(model) for name in part.model_fields}


def test_every_field_of_a_spec_is_read() -> None:
    fields = _fields(kind.model_fields["spec"].annotation for kind in KINDS)
    assert len(fields) > 100
    assert fields - used() == set(NOT_READ_BY_NAME)


@pytest.mark.parametrize("name", ["CourierAssignment", "ReplayAssignment", "RedriveAssignment", "LiveConfig"])
def test_every_field_of_an_assignment_is_read_in_the_pod(name: str) -> None:
    assignment = getattr(worker_config, name)
    read = {one.attribute for one in reads() if one.reader.startswith(POD_MODULES)}
    assert {f"{name}.{field}" for field in assignment.model_fields} - read == set()


def test_reads_by_validation_rules_do_not_count() -> None:
    assert "ReplayDestination.origin" in used()
    scopes = ReaderScopes("deadletter.api.example")
    scopes.visit(ast.parse("class Example:\n    rule = lambda example: example.field\n"))
    assert not scopes.readers
