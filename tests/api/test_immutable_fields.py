"""Tests that immutable fields cannot be added, removed or changed, and partitions cannot decrease."""

import pytest

from deadletter.api.replays import IMMUTABLE, ReplaySpec
from tests.api.manifests import ADOPTED, DELIVERED, PLAIN, merged
from tests.api.server import manifest

MUTABLE = ("suspend", "rate", "ttlSecondsAfterFinished")
FULL = {
    "queueRef": {"name": "orders"},
    "mode": "Apply",
    "action": "Republish",
    "select": {"limit": 5},
    "to": {"origin": True},
    "timestamp": "Now",
    "parallelism": 4,
    "canary": {"steps": [1]},
    "transform": {"setHeaders": {"a": "b"}},
    "maxReplays": 3,
    "onMissingOrigin": "Skip",
    "onTooLarge": "Skip",
    "verify": {"window": "5m"},
    "activeDeadline": "1h",
}
CHANGED = {
    "queueRef": {"name": "others"},
    "mode": "DryRun",
    "action": "Discard",
    "select": {"limit": 6},
    "previewRef": {"name": "dry"},
    "to": {"origin": False, "name": "a"},
    "timestamp": "Original",
    "parallelism": 5,
    "canary": {"steps": [2]},
    "transform": {"setHeaders": {"a": "c"}},
    "maxReplays": 4,
    "onMissingOrigin": "Fail",
    "onTooLarge": "Fail",
    "verify": {"window": "6m"},
    "activeDeadline": "2h",
}
REQUIRED = {"queueRef"}
DEFAULTED = {"mode", "action", "select", "timestamp", "parallelism", "maxReplays", "onMissingOrigin", "onTooLarge"}


def _create(server, namespace, kind, spec):
    status, made = server.write("POST", namespace, manifest(kind, spec), dry_run=False)
    assert status == 201, made
    return made


def _put(server, namespace, made, spec):
    return server.write("PUT", namespace, made | {"spec": spec})


def _assert_rejected(server, namespace, made, spec, field):
    status, answer = _put(server, namespace, made, spec)
    assert status == 422, (field, spec)
    assert f"{field} is immutable: create another" in answer, (field, answer)


def test_every_field_of_a_replay_is_mutable_or_immutable():
    fields = {field.alias for field in ReplaySpec.model_fields.values()}
    assert fields == {*IMMUTABLE, *MUTABLE}
    assert set(CHANGED) == set(IMMUTABLE)


def test_fields_of_a_replay_cannot_be_changed(server, namespace):
    made = _create(server, namespace, "Replay", FULL)
    for field, value in CHANGED.items():
        _assert_rejected(server, namespace, made, merged(FULL, {field: value}), field)


def test_fields_of_a_replay_cannot_be_removed(server, namespace):
    made = _create(server, namespace, "Replay", FULL)
    for field in FULL.keys() - REQUIRED - (DEFAULTED - {"select"}):
        _assert_rejected(server, namespace, made, merged(FULL, {field: None}), field)


def test_fields_of_a_replay_cannot_be_added(server, namespace):
    bare = {"queueRef": {"name": "orders"}}
    made = _create(server, namespace, "Replay", bare)
    for field in CHANGED.keys() - REQUIRED:
        _assert_rejected(server, namespace, made, merged(bare, {field: CHANGED[field]}), field)


def test_a_json_patch_of_a_replay_cannot_be_changed(server, namespace):
    def patched(value):
        return merged(FULL, {"transform": {"jsonPatch": [{"op": "add", "path": "/a", "value": value}]}})

    made = _create(server, namespace, "Replay", patched("EUR"))
    _assert_rejected(server, namespace, made, patched("USD"), "transform")


def test_suspend_rate_and_ttl_of_a_replay_can_be_changed(server, namespace):
    made = _create(server, namespace, "Replay", FULL)
    change = {"suspend": True, "rate": {"perSecond": 5}, "ttlSecondsAfterFinished": 60}
    status, answer = _put(server, namespace, made, merged(FULL, change))
    assert status == 200, answer


@pytest.mark.parametrize(
    ("spec", "change", "field"),
    [
        (DELIVERED, {"brokerRef": {"name": "other"}}, "brokerRef"),
        (DELIVERED, {"source": {"name": "other"}}, "source"),
        (DELIVERED, {"source": {"group": "other"}}, "source"),
        (DELIVERED, {"source": None, "delivery": None, "dead": {"name": "a"}}, "source"),
        (PLAIN, {"source": DELIVERED["source"], "delivery": DELIVERED["delivery"]}, "source"),
        (DELIVERED, {"dead": {"name": "added"}}, "name"),
        (PLAIN, {"dead": {"name": "changed"}}, "name"),
        (merged(DELIVERED, {"dead": {"name": "a"}}), {"dead": {"name": None}}, "name"),
        (merged(DELIVERED, {"dead": {"name": "a"}}), {"dead": None}, "name"),
        (PLAIN, {"dead": {"adopt": True}}, "adopt"),
        (ADOPTED, {"dead": {"adopt": None}}, "adopt"),
        (ADOPTED, {"dead": {"adopt": False}}, "adopt"),
    ],
)
def test_immutable_fields_of_a_queue_cannot_be_changed(server, namespace, spec, change, field):
    made = _create(server, namespace, "DeadLetterQueue", spec)
    _assert_rejected(server, namespace, made, merged(spec, change), field)


def test_partitions_can_increase_but_not_decrease(server, namespace):
    spec = merged(PLAIN, {"dead": {"partitions": 3}})
    made = _create(server, namespace, "DeadLetterQueue", spec)
    status, answer = _put(server, namespace, made, merged(spec, {"dead": {"partitions": 6}}))
    assert status == 200, answer
    status, answer = _put(server, namespace, made, merged(spec, {"dead": {"partitions": 2}}))
    assert status == 422
    assert "partitions must not decrease: letters would be lost" in answer
