"""The checks of a queue, run in the order of the reconciler."""

import pytest

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.core.reasons import Reason
from deadletter.plan.facts import BoxOwner, QueueFacts, SecretFact
from deadletter.plan.findings import Finding, first_finding
from deadletter.plan.queue_checks import LOOKUP_CHECKS, OBJECT_CHECKS, secret_keys
from tests.plan.builders import connection, delivered_queue, plain_queue, routes

CONNECTED = QueueFacts(connection=connection())
WITH_LOGIN = connection(sasl={"mechanism": "PLAIN", "secretRef": {"name": "login"}})


def check(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    return first_finding(OBJECT_CHECKS, queue, facts) or first_finding(LOOKUP_CHECKS, queue, facts)


def facts(**fields: object) -> QueueFacts:
    return QueueFacts(**({"connection": connection()} | fields))  # type: ignore[arg-type]


def test_a_valid_queue_has_no_finding() -> None:
    assert check(plain_queue(), CONNECTED) is None


PROBLEMS = [
    (
        plain_queue(),
        QueueFacts(),
        "BrokerConnectionNotFound",
        "BrokerConnection broker does not exist; create it first.",
        True,
    ),
    (
        plain_queue(retryPolicyRef={"name": "slow"}),
        CONNECTED,
        "RetryPolicyNotFound",
        "RetryPolicy slow does not exist; create it first.",
        True,
    ),
    (
        plain_queue(routes=routes("b")),
        CONNECTED,
        "QueueNotFound",
        "DeadLetterQueue b does not exist; create it first.",
        True,
    ),
    (
        plain_queue(routes=routes("b")),
        facts(queues={"b": plain_queue("b", routes=routes("c"))}),
        "ChainedReference",
        "DeadLetterQueue b is a dead-letter target and cannot have its own dead-letter queue. "
        "Remove its spec.routes, or route to another queue.",
        False,
    ),
    (
        plain_queue(routes=routes("x")),
        facts(queues={"b": plain_queue("b", routes=routes("orders"))}),
        "ChainedReference",
        "DeadLetterQueue orders is the dead-letter target of b and cannot have its own dead-letter queue. "
        "Remove its spec.routes, or the routes to it.",
        False,
    ),
    (
        plain_queue(routes=routes("b")),
        facts(queues={"b": plain_queue("b", routes=routes("orders"))}),
        "CyclicReference",
        "DeadLetterQueue orders and b route to each other: a cycle. Remove one of the routes.",
        False,
    ),
    (
        plain_queue(routes=routes("b")),
        facts(queues={"b": plain_queue("b", brokerRef={"name": "far"})}),
        "BrokerMismatch",
        "DeadLetterQueue b uses BrokerConnection far, and a route stays on one broker. "
        "Route to a queue with spec.brokerRef broker.",
        False,
    ),
    (
        plain_queue(),
        facts(box_owner=BoxOwner("old", in_other_namespace=False)),
        "BoxConflict",
        "orders.dead is already the dead box of DeadLetterQueue old. "
        "Set another spec.dead.name, or delete one of the two queues.",
        False,
    ),
    (
        plain_queue(),
        facts(box_owner=BoxOwner("old", in_other_namespace=True)),
        "BoxConflict",
        "orders.dead is already the dead box of a queue of another namespace. "
        "Set another spec.dead.name, or delete one of the two queues.",
        False,
    ),
    (
        plain_queue(),
        facts(connection=WITH_LOGIN, secrets={"login": SecretFact(exists=False)}),
        "SecretNotFound",
        "Secret login does not exist; create it first.",
        True,
    ),
    (
        plain_queue(),
        facts(
            connection=WITH_LOGIN,
            secrets={"login": SecretFact(readable=False, refusal="Secret login has no label; add it.")},
        ),
        "SecretNotReadable",
        "Secret login has no label; add it.",
        True,
    ),
    (
        plain_queue(),
        facts(connection=WITH_LOGIN, secrets={"login": SecretFact(readable=False)}),
        "SecretNotReadable",
        "The operator may not read Secret login in shop; grant it get on Secrets.",
        True,
    ),
    (
        plain_queue(),
        facts(connection=WITH_LOGIN, secrets={"login": SecretFact(frozenset({"username"}))}),
        "SecretKeyMissing",
        "Secret login has no key password; add it.",
        True,
    ),
    (
        delivered_queue(),
        facts(services={"billing": False}),
        "ServiceNotFound",
        "Service billing does not exist; create it first.",
        True,
    ),
]


@pytest.mark.parametrize(("queue", "seen", "reason", "message", "is_transient"), PROBLEMS)
def test_each_problem_has_a_message_with_a_remedy(queue, seen, reason, message, is_transient) -> None:  # type: ignore[no-untyped-def]
    found = check(queue, seen)
    assert found is not None
    assert (found.reason, found.message, found.is_transient) == (Reason.__members__[reason], message, is_transient)


def test_a_name_that_only_redis_accepts_is_refused_on_kafka() -> None:
    queue = plain_queue(dead={"name": "{orders}:dead"})
    found = check(queue, CONNECTED)
    assert found is not None
    assert (found.reason, found.message.split(":")[0]) == (Reason.InvalidSpec, "spec.dead.name")
    assert check(queue, facts(connection=connection(redis=True))) is None


def test_a_broken_expression_is_reported_with_its_field_and_position() -> None:
    found = check(plain_queue(routes=[{"match": "attempts +", "queueRef": {"name": "b"}}]), CONNECTED)
    assert found is not None
    assert found.message.startswith("spec.routes[0].match: 1:")


def test_every_key_that_a_worker_reads_is_checked() -> None:
    tls = {"caSecretRef": {"name": "ca", "key": "root.pem"}, "clientSecretRef": {"name": "cert"}}
    header = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "bearer"}}}
    http = {"serviceRef": {"name": "billing"}, "headers": [header], "tls": tls}
    keys = secret_keys(delivered_queue(delivery={"http": http}), WITH_LOGIN)
    assert [(key.name, key.key) for key in keys] == [
        ("login", "username"),
        ("login", "password"),
        ("token", "bearer"),
        ("ca", "root.pem"),
        ("cert", "tls.crt"),
        ("cert", "tls.key"),
    ]


def test_a_login_on_redis_needs_no_user_name() -> None:
    spec = {"redis": {"url": "redis://r:6379/0", "secretRef": {"name": "login"}}}
    redis = BrokerConnection.from_body({"metadata": {"name": "broker"}, "spec": spec})
    seen = facts(connection=redis, secrets={"login": SecretFact(frozenset({"password"}))})
    assert check(plain_queue(), seen) is None


@pytest.mark.parametrize(
    ("redrive", "dialect", "origin", "is_known"),
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
def test_a_standing_redrive_needs_letters_that_name_their_origin(redrive, dialect, origin, is_known) -> None:  # type: ignore[no-untyped-def]
    dead = {"name": "x", "adopt": True, "dialect": dialect} | ({"origin": origin} if origin else {})
    found = check(plain_queue(dead=dead, redrive=redrive), CONNECTED)
    assert (found is None) == is_known
    assert found is None or (found.reason, found.is_transient, found.condition) == (
        Reason.OriginUnknown,
        False,
        "Stalled",
    )
