"""What a user sees: tables that fit a terminal, columns that answer, a manual in `kubectl explain`, scale."""

import json

import pytest

from deadletter.api.kinds import API_VERSION
from tests.api.cases import ADOPTED, DELIVERED, KAFKA, PLAIN, REPLAYED, merged
from tests.api.server import PLURALS, manifest

NARROW, WIDE = 80, 120
SINCE = "2020-01-01T00:00:00Z"


def _condition(kind, status, reason):
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": SINCE}


OBJECTS = (
    (
        manifest("BrokerConnection", KAFKA, "kafka"),
        {
            "conditions": [_condition("Ready", "True", "Reconciled")],
            "server": {"kind": "Kafka", "version": "4.1"},
            "queues": 4,
        },
    ),
    (
        manifest("BrokerConnection", KAFKA, "kafka-of-another-team"),
        {"conditions": [_condition("Ready", "False", "AuthenticationFailed")], "queues": 0},
    ),
    (
        manifest("RetryPolicy", {"maxAge": "24h"}, "standard"),
        {"conditions": [_condition("Ready", "True", "Reconciled")], "queues": 3},
    ),
    (
        manifest("DeadLetterQueue", merged(DELIVERED, {"retryPolicyRef": {"name": "standard"}}), "orders"),
        {
            "conditions": [_condition("Ready", "True", "Reconciled"), _condition("Degraded", "True", "DepthHigh")],
            "depth": 12345,
            "oldestLetterTime": SINCE,
            "policy": {"name": "standard", "hash": "ab12cd34"},
            "boxes": {"dead": "orders.billing.dlq"},
            "utilization": 100,
        },
    ),
    (
        manifest("DeadLetterQueue", ADOPTED, "payments"),
        {
            "conditions": [_condition("Ready", "False", "BrokerUnreachable")],
            "policy": {"name": "default"},
            "boxes": {"dead": "payments-dlt"},
        },
    ),
    (
        manifest("Replay", REPLAYED | {"mode": "DryRun"}, "orders-dry"),
        {"conditions": [_condition("Succeeded", "True", "DryRunFinished")], "matched": 1234, "replayed": 0},
    ),
    (
        manifest("Replay", REPLAYED, "orders-fixed"),
        {
            "conditions": [_condition("Succeeded", "False", "DeliveryFailed")],
            "matched": 1234,
            "replayed": 1200,
            "failedAgain": 34,
        },
    ),
)


@pytest.fixture
def filled(server, namespace):
    """A namespace with objects and their status."""
    for body, status in OBJECTS:
        code, made = server.write("POST", namespace, body, dry_run=False)
        assert code == 201, made
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURALS[body['kind']]}/{body['metadata']['name']}/status"
        code, said = server.request("PUT", path, made | {"status": status})
        assert code == 200, said
    return namespace


HEADERS = {
    "bkc": "NAME READY KIND SERVER QUEUES AGE",
    "rtp": "NAME READY STRATEGY ATTEMPTS MAX-AGE QUEUES AGE",
    "dlq": "NAME READY BROKER DEPTH OLDEST HEALTH POLICY AGE",
    "rply": "NAME SUCCEEDED REASON QUEUE MATCHED REPLAYED AGE",
}


def test_tables_fit_a_terminal_and_answer(crds, filled):
    for short, header in HEADERS.items():
        lines = crds.kubectl("-n", filled, "get", short).splitlines()
        assert lines[0].split() == header.split()
        assert max(len(line.rstrip()) for line in lines) <= NARROW, "\n".join(lines)
    queue = crds.kubectl("-n", filled, "get", "dlq", "orders").splitlines()[1].split()
    assert queue[:4] == ["orders", "True", "kafka", "12345"]
    assert queue[5:7] == ["DepthHigh", "standard"]


def test_wide_tables_fit_too(crds, filled):
    for short, header in HEADERS.items():
        lines = crds.kubectl("-n", filled, "get", short, "-o", "wide").splitlines()
        assert set(header.split()) <= set(lines[0].split())
        assert max(len(line.rstrip()) for line in lines) <= WIDE, "\n".join(lines)
    header, row = (
        line.split() for line in crds.kubectl("-n", filled, "get", "dlq", "orders", "-o", "wide").splitlines()
    )
    shown = dict(zip(header, row, strict=True))
    assert {shown[name] for name in ("REASON", "DEAD", "UTIL")} == {"Reconciled", "orders.billing.dlq", "100"}


def test_all_kinds_are_one_category_and_found_by_reference(crds, filled):
    names = crds.kubectl("-n", filled, "get", "deadletters", "-o", "name").split()
    assert len(names) == len(OBJECTS)
    found = crds.kubectl("-n", filled, "get", "dlq", "--field-selector=spec.retryPolicyRef.name=standard", "-o", "name")
    assert found.split() == ["deadletterqueue.deadletter.dev/orders"]
    found = crds.kubectl("-n", filled, "get", "rply", "--field-selector=spec.queueRef.name=orders", "-o", "name")
    assert len(found.split()) == 2


def test_explain_is_a_manual(crds):
    text = crds.kubectl("explain", "deadletterqueue.spec.delivery")
    for words in ("How the courier delivers it", "Requests in flight at once", "Pods of the courier", "inlineLimit"):
        assert words in text
    text = crds.kubectl("explain", "retrypolicies.spec.backoff.strategy")
    assert "Exponential" in text
    assert "times factor" in text


def test_a_delivered_queue_scales(crds, server, namespace):
    server.write("POST", namespace, manifest("DeadLetterQueue", DELIVERED, "orders"), dry_run=False)
    crds.kubectl("-n", namespace, "scale", "dlq/orders", "--replicas=3")
    made = json.loads(crds.kubectl("-n", namespace, "get", "dlq", "orders", "-o", "json"))
    assert made["spec"]["delivery"]["replicas"] == 3


def test_a_queue_without_delivery_has_no_scale(server, namespace):
    server.write("POST", namespace, manifest("DeadLetterQueue", PLAIN, "plain"), dry_run=False)
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/deadletterqueues/plain/scale"
    assert server.request("GET", path)[0] == 500
