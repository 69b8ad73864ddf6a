"""Tests that schema and rules reject hostile manifests with a clear message, without a webhook."""

import pytest

from tests.api.manifests import DELIVERED, HTTP, KAFKA, PLAIN, REPLAYED, merged
from tests.api.server import manifest

MIB = "x" * (1 << 20)
HOSTILE = {
    "10,000 rules": (
        ("RetryPolicy", {"rules": [{"name": f"r{n}", "match": "true"} for n in range(10_000)]}),
        "spec.rules: Too many: 10000: must have at most 32 items",
    ),
    "10,000 headers": (
        (
            "DeadLetterQueue",
            merged(DELIVERED, {"delivery": {"http": {"headers": [{"name": "a", "value": "b"}] * 10_000}}}),
        ),
        "spec.delivery.http.headers: Too many: 10000",
    ),
    "10,000 ids": (("Replay", REPLAYED | {"select": {"ids": ["0-1"] * 10_000}}), "spec.select.ids: Too many: 10000"),
    "a mebibyte of where": (("Replay", REPLAYED | {"select": {"where": MIB}}), "spec.select.where: Too long"),
    "a mebibyte of a name": (("DeadLetterQueue", merged(PLAIN, {"dead": {"name": MIB}})), "spec.dead.name: Too long"),
    "a mebibyte of a url": (
        ("DeadLetterQueue", merged(DELIVERED, {"delivery": {"http": {"serviceRef": None, "url": "http://" + MIB}}})),
        "spec.delivery.http.url: Too long",
    ),
    "a mebibyte of patch": (
        ("Replay", REPLAYED | {"transform": {"jsonPatch": [{"op": "add", "path": "/a", "value": MIB}]}}),
        "spec.transform.jsonPatch[0].value: Too long",
    ),
    "a negative number": (
        ("RetryPolicy", {"maxAttempts": -1}),
        "spec.maxAttempts in body should be greater than or equal to 1",
    ),
    "an absurd number": (
        ("RetryPolicy", {"maxAttempts": 10**18}),
        "spec.maxAttempts in body should be less than or equal to 1000",
    ),
    "absurd partitions": (
        ("DeadLetterQueue", merged(PLAIN, {"dead": {"partitions": 2**31}})),
        "should be less than or equal to 10000",
    ),
    "an absurd port": (
        (
            "DeadLetterQueue",
            merged(DELIVERED, {"delivery": {"http": HTTP | {"serviceRef": {"name": "a", "port": 70000}}}}),
        ),
        "should be less than or equal to 65535",
    ),
    "an absurd duration": (("RetryPolicy", {"timeout": "9999999999h"}), "must be a duration such as"),
    "a negative duration": (("RetryPolicy", {"timeout": "-5s"}), "must be a duration such as"),
    "a number for a text": (("RetryPolicy", {"timeout": 5}), "spec.timeout in body must be of type string"),
    "a text for a number": (("RetryPolicy", {"maxAttempts": "5"}), "spec.maxAttempts in body must be of type integer"),
    "a float": (("RetryPolicy", {"backoff": {"factor": 2.5}}), "spec.backoff.factor in body must be of type string"),
    "an unknown value": (
        ("RetryPolicy", {"backoff": {"strategy": "Often"}}),
        'Unsupported value: "Often": supported values',
    ),
    "a control character": (
        ("BrokerConnection", merged(KAFKA, {"kafka": {"bootstrapServers": ["kafka\u0000:9092"]}})),
        "bootstrapServers must each be host:port",
    ),
    "right to left": (
        ("DeadLetterQueue", merged(PLAIN, {"dead": {"name": "a\u202eb"}})),
        "must be the name of a topic",
    ),
    "a trailing newline": (
        ("DeadLetterQueue", merged(PLAIN, {"dead": {"name": "a\n"}})),
        "must be the name of a topic",
    ),
    "no reference": (("DeadLetterQueue", {"dead": {"name": "a"}}), "spec.brokerRef: Required value"),
    "no spec": (("DeadLetterQueue", None), "spec: Required value"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input_is_rejected_with_a_clear_message(server, namespace, case):
    (kind, spec), message = HOSTILE[case]
    body = manifest(kind, spec)
    if spec is None:
        del body["spec"]
    status, answer = server.write("POST", namespace, body)
    assert status == 422, answer[:500]
    assert message in answer, answer[:500]


def test_a_reference_to_another_namespace_is_rejected(server, namespace):
    spec = merged(PLAIN, {"brokerRef": {"name": "kafka", "namespace": "other"}})
    status, answer = server.write("POST", namespace, manifest("DeadLetterQueue", spec))
    assert status == 400
    assert 'unknown field "spec.brokerRef.namespace"' in answer


def test_an_unknown_field_is_rejected_for_strict_clients_and_pruned_for_others(server, namespace):
    body = manifest("RetryPolicy", {"maxAttempts": 2, "maxAttempt": 3})
    status, answer = server.write("POST", namespace, body)
    assert status == 400
    assert 'unknown field "spec.maxAttempt"' in answer
    status, made = server.write("POST", namespace, body, strict=False)
    assert status == 201
    assert "maxAttempt" not in made["spec"]


def test_invalid_names_of_objects_are_rejected(server, namespace):
    for name in ("Aa", "a_b", "ключ", "a\u0007", "a" * 254):
        status, answer = server.write("POST", namespace, manifest("RetryPolicy", {}, name))
        assert status == 422
        assert "metadata.name" in answer
