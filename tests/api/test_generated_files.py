"""Tests that generated files are current and that the CRDs keep the limits of the API server."""

import json
from pathlib import Path

import pytest
import yaml

from tools import crds, reference_docs
from tools.crds import KINDS, build_crd, to_structural

ROOT = Path(__file__).parents[2]
SPEC_BYTES = 128 * 1024


@pytest.mark.parametrize("path", crds.render_files())
def test_the_crds_are_current(path):
    assert (ROOT / path).read_text() == crds.render_files()[path], "run `make crds`"


@pytest.mark.parametrize("path", reference_docs.render_files(ROOT / "examples"))
def test_the_reference_is_current(path):
    assert (ROOT / path).read_text() == reference_docs.render_files(ROOT / "examples")[path], "run `make crds`"


def test_check_detects_stale_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert crds.main(["--check"]) == 1
    assert crds.main([]) == 0
    assert crds.main(["--check"]) == 0
    first = next(iter(crds.render_files()))
    (tmp_path / first).write_text("edited by hand")
    assert crds.main(["--check"]) == 1


def test_reference_check_detects_stale_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reference_docs.main(["--check"]) == 1
    assert reference_docs.main([]) == 0
    assert reference_docs.main(["--check"]) == 0


def _spec(kind):
    return build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def _walk(node, path=""):
    yield path, node
    for name, field in node.get("properties", {}).items():
        yield from _walk(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in node:
            yield from _walk(node[inner], f"{path}[]")


@pytest.mark.parametrize("kind", KINDS)
def test_every_string_list_map_and_integer_is_limited(kind):
    for path, node in _walk(_spec(kind)):
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer":
            assert {"minimum", "maximum"} <= node.keys(), path


def _max_bytes(node):
    """Return the maximum size of a value as JSON; our patterns allow only ASCII, so characters are bytes."""
    if "enum" in node:
        return max(len(one) for one in node["enum"]) + 2
    if "properties" in node:
        return 2 + sum(len(name) + 4 + _max_bytes(field) for name, field in node["properties"].items())
    if "items" in node:
        return 2 + node["maxItems"] * (1 + _max_bytes(node["items"]))
    if "additionalProperties" in node:
        return 2 + node["maxProperties"] * (134 + _max_bytes(node["additionalProperties"]))
    return 2 + node["maxLength"] if "maxLength" in node else 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_spec_is_limited(kind):
    assert _max_bytes(_spec(kind)) < SPEC_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind):
    for part in ("spec", "status"):
        schema = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
        for path, node in _walk(schema):
            assert path.endswith("[]") or node.get("description"), path


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_are_a_map_by_type(kind):
    status = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    conditions = status["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert '"default":' not in json.dumps(status)


def test_the_queue_has_a_scale_and_selectable_references():
    version = build_crd(KINDS[2])["spec"]["versions"][0]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.delivery.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert {one["jsonPath"] for one in version["selectableFields"]} == {
        ".spec.brokerRef.name",
        ".spec.retryPolicyRef.name",
    }
    assert build_crd(KINDS[3])["spec"]["versions"][0]["selectableFields"] == [{"jsonPath": ".spec.queueRef.name"}]


def test_the_generator_rejects_a_union_of_two_types():
    with pytest.raises(ValueError, match="too many values"):
        to_structural({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {})


def test_the_chart_copy_differs_only_in_conditions():
    for kind in KINDS:
        text = (ROOT / f"charts/dlq-operator/templates/crds/{kind.plural}.yaml").read_text()
        assert "{{- if .Values.crds.enabled }}" in text
        assert "{{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep" in text
        plain = "\n".join(line for line in text.splitlines() if "{{" not in line)
        rendered = yaml.safe_load(plain)
        rendered["metadata"].pop("annotations")
        assert rendered == build_crd(kind)
