"""Tests that every example is valid, has a purpose comment and applies twice without drift."""

import re
from pathlib import Path

import pytest
import yaml

from deadletter.core.cel import Predicate
from tools.crds import KINDS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
MODELS = {kind.kind: kind for kind in KINDS}
SYSTEMS = ("pipestream", "design-002", "querator", "weakincentives", "mahavishnu")


def _custom_resources(path):
    documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
    return [one for one in documents if one["apiVersion"].startswith("deadletter.dev/")]


def test_there_is_an_example_for_every_kind_and_system():
    kinds = {one["kind"] for path in EXAMPLES for one in _custom_resources(path)}
    assert kinds == set(MODELS)
    assert len(EXAMPLES) >= 12
    assert {path.stem for path in EXAMPLES} >= set(SYSTEMS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_begins_with_its_purpose_and_the_models_take_it(path):
    comment = [line for line in path.read_text().split("\napiVersion:")[0].splitlines() if line.startswith("# ")]
    assert re.fullmatch(r"# [A-Z].{30,}\.", " ".join(comment))
    for body in _custom_resources(path):
        model = MODELS[body["kind"]].from_body(body)
        assert MODELS[body["kind"]].from_body(body | {"spec": model.spec.to_wire()}).spec == model.spec


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_expressions_of_an_example_compile(path):
    for body in _custom_resources(path):
        spec = MODELS[body["kind"]].from_body(body).spec
        if body["kind"] == "RetryPolicy":
            spec.to_policy()
        if body["kind"] == "DeadLetterQueue":
            for source in (*(route.match for route in spec.routes), spec.redrive.where):
                if source is not None:
                    Predicate(source)
        if body["kind"] == "Replay" and spec.select.where:
            Predicate(spec.select.where)


def test_the_json_patch_of_an_example_is_kept():
    for path in EXAMPLES:
        for body in _custom_resources(path):
            if transform := body["spec"].get("transform"):
                spec = MODELS["Replay"].from_body(body).spec.transform
                patch = [one.to_wire() for one in spec.json_patch]
                assert patch == transform["jsonPatch"]


def test_every_example_applies_server_side_and_again_without_drift(crds, namespace):
    arguments = [word for path in EXAMPLES for word in ("-f", str(path))]
    first = crds.kubectl("-n", namespace, "apply", "--server-side", "--validate=strict", *arguments)
    assert first.count("serverside-applied") == sum(len(_custom_resources(path)) for path in EXAMPLES)
    kinds = ",".join(kind.plural for kind in KINDS)

    def versions():
        items = yaml.safe_load(crds.kubectl("-n", namespace, "get", kinds, "-o", "json"))["items"]
        return {(one["kind"], one["metadata"]["name"]): one["metadata"]["resourceVersion"] for one in items}

    before = versions()
    crds.kubectl("-n", namespace, "apply", "--server-side", "--validate=strict", *arguments)
    assert versions() == before
