"""Tests of every CEL rule on valid and invalid manifests, in the models and in the API server."""

import re

import pytest
from pydantic import ValidationError

from tests.api.invalid_manifests import INVALID
from tests.api.manifests import VALID
from tests.api.server import manifest
from tools.crds import KINDS, build_crd

MODELS = {kind.kind: kind for kind in KINDS}


def test_the_server_accepts_valid_manifests(server, namespace):
    for case, (kind, spec) in VALID.items():
        status, answer = server.write("POST", namespace, manifest(kind, spec))
        assert status == 201, (case, answer)


def test_the_server_rejects_invalid_manifests_with_the_message(server, namespace):
    for case, ((kind, spec), message) in INVALID.items():
        status, answer = server.write("POST", namespace, manifest(kind, spec))
        assert status == 422, (case, answer)
        assert message in answer, case


@pytest.mark.parametrize("case", VALID)
def test_the_models_accept_valid_manifests(case):
    kind, spec = VALID[case]
    MODELS[kind].from_body(manifest(kind, spec))


@pytest.mark.parametrize("case", INVALID)
def test_the_models_reject_invalid_manifests_with_the_same_message(case):
    (kind, spec), message = INVALID[case]
    with pytest.raises(ValidationError, match=re.escape(message)):
        MODELS[kind].from_body(manifest(kind, spec))


def _rules(node):
    for key, value in node.items():
        if key == "x-kubernetes-validations":
            yield from value
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _rules(one)


def test_every_rule_has_an_invalid_manifest():
    rules = [rule for kind in KINDS for rule in _rules(build_crd(kind)["spec"]) if "oldSelf" not in rule["rule"]]
    messages = [message for _, message in INVALID.values()]
    untested = {rule["message"] for rule in rules if not any(one in rule["message"] for one in messages)}
    assert untested == set()


def test_a_rule_that_names_one_field_points_at_it():
    named = [rule for kind in KINDS for rule in _rules(build_crd(kind)["spec"]) if rule["rule"].startswith("has(self.")]
    assert all("fieldPath" in rule for rule in named if "is immutable" in rule["message"])


def test_the_error_does_not_repeat_a_url_with_credentials(server, namespace):
    kind, spec = "BrokerConnection", {"redis": {"url": "redis://admin:hunter2@redis:6379"}}
    status, answer = server.write("POST", namespace, manifest(kind, spec))
    assert status == 422
    assert "hunter2" not in answer
