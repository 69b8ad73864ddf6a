"""Tests of every CEL rule on valid and invalid manifests, in the models and in the API server."""

import copy
import json
import re

import pytest
from pydantic import ValidationError

from deadletter.api.replays import Replay
from tests.api.invalid_manifests import INVALID
from tests.api.manifests import VALID, replay
from tests.api.server import manifest
from tests.bed.processes import wait_until
from tools.crds import KINDS, build_crd

MODELS = {kind.kind: kind for kind in KINDS}
OLDER_GROUP = "older.example.com"


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


UNSELECTED = (
    replay(action="Discard"),
    replay(action="Archive", select={"all": False}),
    replay(action="Discard", select={"state": "Archived"}),
)


@pytest.mark.parametrize(("kind", "spec"), UNSELECTED)
def test_the_server_refuses_a_new_replay_that_would_discard_or_archive_everything(server, namespace, kind, spec):
    status, answer = server.write("POST", namespace, manifest(kind, spec))
    assert status == 422
    assert "actions Archive and Discard require a condition in select, or select: {all: true}" in answer


@pytest.mark.parametrize(("kind", "spec"), UNSELECTED)
def test_the_models_accept_such_a_replay_of_an_older_release(kind, spec):
    MODELS[kind].from_body(manifest(kind, spec))


@pytest.fixture
def replays_of_older_release(crds):
    """A copy of the kind in a group of its own, without the rules for new objects; returns the CRD."""
    crd = build_crd(Replay)
    crd["metadata"]["name"] = f"replays.{OLDER_GROUP}"
    crd["spec"]["group"] = OLDER_GROUP
    older = copy.deepcopy(crd)
    rules = _spec_schema(older)["x-kubernetes-validations"]
    rules[:] = [rule for rule in rules if "optionalOldSelf" not in rule]
    crds.kubectl("create", "-f", "-", stdin=json.dumps(older))
    crds.kubectl("wait", "--for=condition=Established", "--timeout=120s", f"crd/replays.{OLDER_GROUP}")
    yield crd
    crds.kubectl("delete", "crd", f"replays.{OLDER_GROUP}")


def _spec_schema(crd):
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_a_stored_replay_without_a_selection_can_still_be_changed(crds, server, namespace, replays_of_older_release):
    path = f"/apis/{OLDER_GROUP}/v1alpha1/namespaces/{namespace}/replays"
    body = manifest(*replay(action="Discard")) | {"apiVersion": f"{OLDER_GROUP}/v1alpha1"}
    wait_until("the older kind", lambda: server.request("POST", f"{path}?dryRun=All", body)[0] == 201, 60)
    status, made = server.request("POST", path, body)
    assert status == 201, made
    crds.kubectl("replace", "-f", "-", stdin=json.dumps(replays_of_older_release))
    following = body | {"metadata": {"name": "next"}}
    wait_until("the new rule", lambda: server.request("POST", f"{path}?dryRun=All", following)[0] == 422, 60)
    status, made = server.request("PUT", f"{path}/sample", made | {"spec": made["spec"] | {"suspend": True}})
    assert status == 200, made
    status, answer = server.request("PUT", f"{path}/sample/status", made | {"status": {"matched": 1}})
    assert status == 200, answer


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
