"""Every rule: a manifest that keeps it, one that breaks it, and the sentence a user reads; models and server agree."""

import re

import pytest
from pydantic import ValidationError

from tests.api.cases import ACCEPTED, REFUSED
from tests.api.server import manifest
from tools.crds import KINDS, crd

MODELS = {kind.kind: kind for kind in KINDS}


def test_the_server_accepts_what_keeps_the_rules(server, namespace):
    for story, (kind, spec) in ACCEPTED.items():
        status, said = server.write("POST", namespace, manifest(kind, spec))
        assert status == 201, (story, said)


def test_the_server_refuses_what_breaks_a_rule_with_its_sentence(server, namespace):
    for story, ((kind, spec), sentence) in REFUSED.items():
        status, said = server.write("POST", namespace, manifest(kind, spec))
        assert status == 422, (story, said)
        assert sentence in said, story


@pytest.mark.parametrize("story", ACCEPTED)
def test_the_models_accept_what_keeps_the_rules(story):
    kind, spec = ACCEPTED[story]
    MODELS[kind].from_body(manifest(kind, spec))


@pytest.mark.parametrize("story", REFUSED)
def test_the_models_refuse_what_breaks_a_rule_with_the_same_sentence(story):
    (kind, spec), sentence = REFUSED[story]
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        MODELS[kind].from_body(manifest(kind, spec))


def _rules(node):
    for key, value in node.items():
        if key == "x-kubernetes-validations":
            yield from value
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _rules(one)


def test_every_rule_is_broken_by_some_manifest():
    rules = [rule for kind in KINDS for rule in _rules(crd(kind)["spec"]) if "oldSelf" not in rule["rule"]]
    sentences = [sentence for _, sentence in REFUSED.values()]
    untested = {rule["message"] for rule in rules if not any(one in rule["message"] for one in sentences)}
    assert untested == set()


def test_a_rule_that_names_one_field_points_at_it():
    named = [rule for kind in KINDS for rule in _rules(crd(kind)["spec"]) if rule["rule"].startswith("has(self.")]
    assert all("fieldPath" in rule for rule in named if "is immutable" in rule["message"])


def test_a_refused_url_is_not_repeated_in_the_answer(server, namespace):
    kind, spec = "BrokerConnection", {"redis": {"url": "redis://admin:hunter2@redis:6379"}}
    status, said = server.write("POST", namespace, manifest(kind, spec))
    assert status == 422
    assert "hunter2" not in said
