"""Tests of the output of kubectl: column widths, `kubectl explain`, scale."""

import json
import re

import pytest

from deadletter.api.custom_resource import API_VERSION
from deadletter.core.reasons import Reason
from tests.api.manifests import ADOPTED, DELIVERED, KAFKA, PLAIN, REPLAYED, merged
from tests.api.server import PLURALS, manifest

NARROW, WIDE = 80, 120
SINCE = "2020-01-01T00:00:00Z"
LONGEST = max((reason.value for reason in Reason), key=len)


def _condition(kind, status, reason, message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE}


def _ready(reason):
    return {"conditions": [_condition("Ready", "False", reason, "Why.")]}


OBJECTS = (
    (
        manifest("BrokerConnection", KAFKA, "kafka"),
        {
            "conditions": [_condition("Ready", "True", "Reconciled")],
            "server": {"kind": "Kafka", "version": "4.1"},
            "queues": 4,
        },
    ),
    (manifest("BrokerConnection", KAFKA, "kafka-of-another-team"), _ready("AuthenticationFailed") | {"queues": 0}),
    (
        manifest("RetryPolicy", {"maxAge": "24h"}, "standard"),
        {"conditions": [_condition("Ready", "True", "Reconciled")], "queues": 3},
    ),
    (
        manifest("DeadLetterQueue", merged(DELIVERED, {"retryPolicyRef": {"name": "slow"}}), "orders"),
        {
            "conditions": [
                _condition("Ready", "True", "Reconciled"),
                _condition("Degraded", "True", "DepthHigh", "More than 1000 letters are open."),
            ],
            "depth": 12345,
            "oldestLetterTime": SINCE,
            "policy": {"name": "slow", "hash": "ab12cd34"},
            "boxes": {"dead": "orders.billing.dlq"},
            "utilization": 100,
        },
    ),
    (manifest("DeadLetterQueue", ADOPTED, "mails"), _ready(LONGEST) | {"policy": {"name": "slow"}}),
    (
        manifest("DeadLetterQueue", PLAIN, "parked"),
        {
            "conditions": [_condition("Ready", "True", "Reconciled"), _condition("Degraded", "False", "AsExpected")],
            "depth": 0,
            "policy": {"name": "slow"},
            "boxes": {"dead": "parked.dlq"},
        },
    ),
    (
        manifest("Replay", REPLAYED | {"mode": "DryRun"}, "orders-dry"),
        {"conditions": [_condition("Succeeded", "True", "DryRunFinished")], "matched": 1234, "replayed": 0},
    ),
    (
        manifest("Replay", REPLAYED, "orders-fixed"),
        {
            "conditions": [_condition("Succeeded", "False", LONGEST, "Why.")],
            "matched": 1234567,
            "replayed": 1200000,
            "failedAgain": 34,
        },
    ),
)


@pytest.fixture
def filled(server, namespace):
    """Namespace with objects and their status."""
    for body, status in OBJECTS:
        code, made = server.write("POST", namespace, body, dry_run=False)
        assert code == 201, made
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURALS[body['kind']]}/{body['metadata']['name']}/status"
        code, response = server.request("PUT", path, made | {"status": status})
        assert code == 200, response
    return namespace


# Expected output of `kubectl get`, without the column AGE.
EXPECTED = {
    "bkc": (
        ("NAME", "READY", "KIND", "SERVER", "QUEUES", "REASON"),
        ("kafka", "True", "Kafka", "4.1", "4", "Reconciled"),
        ("kafka-of-another-team", "False", "", "", "0", "AuthenticationFailed"),
    ),
    "rtp": (
        ("NAME", "READY", "STRATEGY", "ATTEMPTS", "MAX-AGE", "QUEUES", "REASON"),
        ("standard", "True", "Exponential", "5", "24h", "3", "Reconciled"),
    ),
    "dlq": (
        ("NAME", "READY", "BROKER", "DEPTH", "OLDEST", "REASON", "POLICY", "DEAD", "GROUP", "UTIL"),
        ("mails", "False", "kafka", "", "", LONGEST, "slow", "", "", ""),
        ("orders", "True", "kafka", "12345", "old", "DepthHigh", "slow", "orders.billing.dlq", "billing", "100"),
        ("parked", "True", "kafka", "0", "", "", "slow", "parked.dlq", "", ""),
    ),
    "rply": (
        ("NAME", "SUCCEEDED", "REASON", "ACTION", "QUEUE", "MODE", "MATCHED", "REPLAYED", "RETURNED"),
        ("orders-dry", "True", "DryRunFinished", "Republish", "orders", "DryRun", "1234", "0", ""),
        ("orders-fixed", "False", LONGEST, "Republish", "orders", "Apply", "1234567", "1200000", "34"),
    ),
}
ONLY_WIDE = {"bkc": {"SERVER"}, "rtp": set(), "dlq": {"POLICY", "DEAD", "GROUP", "UTIL"}}
ONLY_WIDE |= {"rply": {"ACTION", "QUEUE", "MODE", "RETURNED"}}


def _cells(line, header):
    starts = [word.start() for word in re.finditer(r"\S+", header)]
    ends = [*starts[1:], None]
    cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return tuple("" if cell == "<none>" else cell for cell in cells[:-1])


def _table(text):
    """Return the table without AGE; a time that is years ago becomes `old`."""
    lines = text.splitlines()
    rows = [_cells(line, lines[0]) for line in lines]
    return tuple(tuple("old" if re.fullmatch(r"[0-9]+y[0-9]*d?", cell) else cell for cell in row) for row in rows)


def _without(rows, hidden):
    kept = [at for at, name in enumerate(rows[0]) if name not in hidden]
    return tuple(tuple(row[at] for at in kept) for row in rows)


@pytest.mark.parametrize("short", EXPECTED)
def test_tables_fit_a_terminal(crds, filled, short):
    narrow = crds.kubectl("-n", filled, "get", short)
    wide = crds.kubectl("-n", filled, "get", short, "-o", "wide")
    assert _table(narrow) == _without(EXPECTED[short], ONLY_WIDE[short])
    assert _table(wide) == EXPECTED[short]
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= NARROW, narrow
    assert max(len(line.rstrip()) for line in wide.splitlines()) <= WIDE, wide


def test_all_kinds_share_a_category_and_are_selectable_by_reference(crds, filled):
    names = crds.kubectl("-n", filled, "get", "deadletters", "-o", "name").split()
    assert len(names) == len(OBJECTS)
    found = crds.kubectl("-n", filled, "get", "dlq", "--field-selector=spec.retryPolicyRef.name=slow", "-o", "name")
    assert found.split() == ["deadletterqueue.deadletter.dev/orders"]
    found = crds.kubectl("-n", filled, "get", "rply", "--field-selector=spec.queueRef.name=orders", "-o", "name")
    assert len(found.split()) == 2


def test_explain_shows_the_descriptions(crds):
    text = " ".join(crds.kubectl("explain", "deadletterqueue.spec.delivery").split())  # joins wrapped lines
    for phrase in ("How the courier delivers messages", "number of concurrent requests", "Number of courier pods"):
        assert phrase in text
    assert "inlineLimit" in text
    text = " ".join(crds.kubectl("explain", "retrypolicies.spec.backoff.strategy").split())
    assert "Exponential" in text
    assert "multiplied by factor" in text


def test_a_delivered_queue_scales(crds, server, namespace):
    server.write("POST", namespace, manifest("DeadLetterQueue", DELIVERED, "orders"), dry_run=False)
    crds.kubectl("-n", namespace, "scale", "dlq/orders", "--replicas=3")
    made = json.loads(crds.kubectl("-n", namespace, "get", "dlq", "orders", "-o", "json"))
    assert made["spec"]["delivery"]["replicas"] == 3


def test_a_queue_without_delivery_has_no_scale(server, namespace):
    server.write("POST", namespace, manifest("DeadLetterQueue", PLAIN, "plain"), dry_run=False)
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/deadletterqueues/plain/scale"
    assert server.request("GET", path)[0] == 500
