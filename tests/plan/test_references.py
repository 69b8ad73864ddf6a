"""The chain of checks, in the order users hear it."""

import pytest

from deadletter.api.broker_connections import BrokerConnection
from deadletter.core.reasons import Reason
from deadletter.plan.facts import BoxOwner, QueueFacts, SecretFact
from deadletter.plan.findings import first_finding
from deadletter.plan.queue_checks import QUEUE_CHECKS, secret_keys
from tests.plan.things import connection, delivered, plain, routes

FINE = QueueFacts(connection=connection())
LOGIN = connection(sasl={"mechanism": "PLAIN", "secretRef": {"name": "login"}})


def facts(**more: object) -> QueueFacts:
    return QueueFacts(**({"connection": connection()} | more))  # type: ignore[arg-type]


def test_nothing_wrong_is_no_finding() -> None:
    assert first_finding(QUEUE_CHECKS, plain(), FINE) is None


@pytest.mark.parametrize(
    ("queue", "seen", "reason", "sentence", "heals"),
    [
        (
            plain(),
            QueueFacts(),
            "BrokerConnectionNotFound",
            "BrokerConnection broker does not exist; create it first.",
            True,
        ),
        (
            plain(retryPolicyRef={"name": "slow"}),
            FINE,
            "RetryPolicyNotFound",
            "RetryPolicy slow does not exist; create it first.",
            True,
        ),
        (plain(routes=routes("b")), FINE, "QueueNotFound", "DeadLetterQueue b does not exist; create it first.", True),
        (
            plain(routes=routes("b")),
            facts(queues={"b": plain("b", routes=routes("c"))}),
            "ChainedReference",
            "DeadLetterQueue b is a dead-letter target and cannot have its own dead-letter queue.",
            False,
        ),
        (
            plain(routes=routes("x")),
            facts(queues={"b": plain("b", routes=routes("orders"))}),
            "ChainedReference",
            "DeadLetterQueue orders is the dead-letter target of b and cannot have its own dead-letter queue.",
            False,
        ),
        (
            plain(routes=routes("b")),
            facts(queues={"b": plain("b", routes=routes("orders"))}),
            "CyclicReference",
            "DeadLetterQueue orders and b route to each other: a cycle.",
            False,
        ),
        (
            plain(routes=routes("b")),
            facts(queues={"b": plain("b", brokerRef={"name": "far"})}),
            "BrokerMismatch",
            "DeadLetterQueue b lives on another broker; a route stays on one BrokerConnection.",
            False,
        ),
        (
            plain(),
            facts(owner=BoxOwner("old", in_other_namespace=False)),
            "BoxConflict",
            "orders.dead is already the dead box of DeadLetterQueue old.",
            False,
        ),
        (
            plain(),
            facts(owner=BoxOwner("old", in_other_namespace=True)),
            "BoxConflict",
            "orders.dead is already the dead box of a queue of another namespace.",
            False,
        ),
        (
            plain(),
            facts(connection=LOGIN, secrets={"login": SecretFact(exists=False)}),
            "SecretNotFound",
            "Secret login does not exist; create it first.",
            True,
        ),
        (
            plain(),
            facts(connection=LOGIN, secrets={"login": SecretFact(readable=False, refusal="no.")}),
            "SecretNotReadable",
            "no.",
            True,
        ),
        (
            plain(),
            facts(connection=LOGIN, secrets={"login": SecretFact(frozenset({"username"}))}),
            "SecretKeyMissing",
            "Secret login has no key password; add it.",
            True,
        ),
        (
            delivered(),
            facts(services={"billing": False}),
            "ServiceNotFound",
            "Service billing does not exist; create it first.",
            True,
        ),
    ],
)
def test_each_objection_has_its_sentence(queue, seen, reason, sentence, heals) -> None:  # type: ignore[no-untyped-def]
    found = first_finding(QUEUE_CHECKS, queue, seen)
    assert found is not None
    assert (found.reason, found.message, found.is_transient) == (Reason.__members__[reason], sentence, heals)


def test_a_name_only_redis_takes_is_refused_on_kafka() -> None:
    queue = plain(dead={"name": "{orders}:dead"})
    found = first_finding(QUEUE_CHECKS, queue, FINE)
    assert found is not None
    assert found.reason is Reason.InvalidSpec
    assert first_finding(QUEUE_CHECKS, queue, facts(connection=connection(redis=True))) is None


def test_an_expression_that_is_none_names_its_field_and_place() -> None:
    found = first_finding(QUEUE_CHECKS, plain(routes=[{"match": "attempts +", "queueRef": {"name": "b"}}]), FINE)
    assert found is not None
    assert found.message.startswith("spec.routes[0].match: 1:")


def test_every_key_that_a_worker_reads_is_asked_for() -> None:
    tls = {"caSecretRef": {"name": "ca", "key": "root.pem"}, "clientSecretRef": {"name": "cert"}}
    header = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "bearer"}}}
    http = {"serviceRef": {"name": "billing"}, "headers": [header], "tls": tls}
    keys = secret_keys(delivered(delivery={"http": http}), LOGIN)
    assert [(key.name, key.key) for key in keys] == [
        ("login", "username"),
        ("login", "password"),
        ("token", "bearer"),
        ("ca", "root.pem"),
        ("cert", "tls.crt"),
        ("cert", "tls.key"),
    ]


def test_a_redis_needs_no_user_name() -> None:
    spec = {"redis": {"url": "redis://r:6379/0", "secretRef": {"name": "login"}}}
    redis = BrokerConnection.from_body({"metadata": {"name": "broker"}, "spec": spec})
    found = facts(connection=redis, secrets={"login": SecretFact(frozenset({"password"}))})
    assert first_finding(QUEUE_CHECKS, plain(), found) is None


@pytest.mark.parametrize(
    ("redrive", "dialect", "origin", "known"),
    [
        ({"strategy": "Automatic"}, "Auto", None, True),
        ({"strategy": "Automatic"}, "spring-dlt", None, True),
        ({"strategy": "Automatic"}, "arroyo", None, False),
        ({"strategy": "Automatic"}, "arroyo", "orders", True),
        ({"strategy": "Selective", "where": "true"}, "watermill", None, False),
        ({"strategy": "Automatic"}, "none", "orders", False),
        ({"strategy": "Manual"}, "none", None, True),
    ],
)
def test_letters_go_back_by_themselves_only_where_their_origin_is_told(redrive, dialect, origin, known) -> None:  # type: ignore[no-untyped-def]
    dead = {"name": "x", "adopt": True, "dialect": dialect} | ({"origin": origin} if origin else {})
    found = first_finding(QUEUE_CHECKS, plain(dead=dead, redrive=redrive), FINE)
    assert (found is None) == known
    assert found is None or (found.reason, found.is_transient, found.condition) == (Reason.OriginUnknown, False, "Stalled")
