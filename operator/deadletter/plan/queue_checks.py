"""Checks of a queue's spec and of the objects it names; the reconciler and the webhook run the same chain."""

from collections.abc import Iterable, Mapping

from deadletter.api.base import SecretKeyRef
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.core.cel import Predicate, PredicateError
from deadletter.core.condition_types import BOXES_READY, STALLED
from deadletter.core.dialects import registry
from deadletter.core.reasons import Reason
from deadletter.plan.facts import QueueFacts, ReplayFacts, SecretFact
from deadletter.plan.findings import Finding

SHOWN_QUEUES = 5


def missing_reference(kind: str, name: str, reason: Reason) -> Finding:
    """Return the finding for a named object that does not exist."""
    return Finding(reason, f"{kind} {name} does not exist; create it first.", is_missing_reference=True)


def fields_are_supported(resource: DeadLetterQueue | BrokerConnection | Replay, _: object = None) -> Finding | None:
    """Reject fields that the schema accepts and no release implements yet."""
    fields = unsupported_fields(resource)
    if not fields:
        return None
    message = f"{', '.join(fields)}: this release does not support it yet. Remove it or choose another value."
    return Finding(Reason.NotSupportedYet, message, False, STALLED)


def unsupported_fields(resource: DeadLetterQueue | BrokerConnection | Replay) -> list[str]:
    """Return the paths and values of the fields that are not implemented yet."""
    if isinstance(resource, BrokerConnection) and resource.spec.redis and resource.spec.redis.mode == "Cluster":
        return [f"spec.redis.mode: {resource.spec.redis.mode}"]
    return []


def expressions_compile(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """Require that every CEL expression of the queue compiles and returns a bool."""
    expressions = {f"spec.routes[{index}].match": route.match for index, route in enumerate(queue.spec.routes)}
    if queue.spec.redrive.where:
        expressions["spec.redrive.where"] = queue.spec.redrive.where
    return _check_expressions(expressions)


def rules_compile(policy: RetryPolicy) -> Finding | None:
    """Require that the expression of every rule compiles and returns a bool."""
    return _check_expressions(
        {f"spec.rules[{index}].match": rule.match for index, rule in enumerate(policy.spec.rules)}
    )


def _check_expressions(expressions: Mapping[str, str]) -> Finding | None:
    return next((found for field, text in expressions.items() if (found := check_expression(field, text))), None)


def check_expression(field: str, text: str) -> Finding | None:
    """Return why a CEL expression cannot be used, with its field and the position of the error."""
    try:
        Predicate(text)
    except PredicateError as error:
        return Finding(Reason.InvalidSpec, f"{field}: {error}", False, STALLED)
    return None


def no_self_reference(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """Reject a route to the queue itself."""
    if any(route.queue_ref.name == queue.name for route in queue.spec.routes):
        message = f"DeadLetterQueue {queue.name} cannot reference itself; name another queue in spec.routes."
        return Finding(Reason.SelfReference, message, False)
    return None


def connection_exists(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require that `spec.brokerRef` exists."""
    if facts.connection is None:
        return missing_reference("BrokerConnection", queue.spec.broker_ref.name, Reason.BrokerConnectionNotFound)
    return None


def names_are_legal(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require names that the broker accepts; Kafka accepts fewer than Redis."""
    illegal = queue.invalid_name_fields(facts.connection.spec.is_redis) if facts.connection else ()
    if illegal:
        fields = ", ".join(f"spec.{field}" for field in illegal)
        message = f"{fields}: not the name of a Kafka topic. Use letters, digits, '.', '_' and '-' only."
        return Finding(Reason.InvalidSpec, message, False, STALLED)
    return None


def policy_exists(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require that `spec.retryPolicyRef` exists."""
    ref = queue.spec.retry_policy_ref
    if ref is not None and facts.policy is None:
        return missing_reference("RetryPolicy", ref.name, Reason.RetryPolicyNotFound)
    return None


def targets_exist(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require that the queues of `spec.routes` exist."""
    for name in route_targets(queue):
        if name not in facts.queues:
            return missing_reference("DeadLetterQueue", name, Reason.QueueNotFound)
    return None


def route_targets(queue: DeadLetterQueue) -> tuple[str, ...]:
    """Return the names of the queues in `spec.routes`, each once."""
    return tuple(dict.fromkeys(route.queue_ref.name for route in queue.spec.routes))


def no_cycle(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Reject two queues that route to each other."""
    for name in route_targets(queue):
        target = facts.queues.get(name)
        if target is not None and name != queue.name and queue.name in route_targets(target):
            message = f"DeadLetterQueue {queue.name} and {name} route to each other: a cycle. Remove one of the routes."
            return Finding(Reason.CyclicReference, message, False)
    return None


def target_has_no_routes(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Reject a route to a queue that has routes itself."""
    for name in route_targets(queue):
        target = facts.queues.get(name)
        if target is not None and target.spec.routes:
            message = (
                f"DeadLetterQueue {name} is a dead-letter target and cannot have its own dead-letter queue. "
                "Remove its spec.routes, or route to another queue."
            )
            return Finding(Reason.ChainedReference, message, False)
    return None


def route_target_has_no_routes(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Reject routes of a queue that others route to."""
    users = sorted(
        name for name, other in facts.queues.items() if name != queue.name and queue.name in route_targets(other)
    )
    if users and queue.spec.routes:
        message = (
            f"DeadLetterQueue {queue.name} is the dead-letter target of {', '.join(users[:SHOWN_QUEUES])} "
            "and cannot have its own dead-letter queue. Remove its spec.routes, or the routes to it."
        )
        return Finding(Reason.ChainedReference, message, False)
    return None


def routes_share_broker(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require that the queues of `spec.routes` use the same BrokerConnection."""
    for name in route_targets(queue):
        target = facts.queues.get(name)
        if target is not None and target.spec.broker_ref.name != queue.spec.broker_ref.name:
            message = (
                f"DeadLetterQueue {name} uses BrokerConnection {target.spec.broker_ref.name}, and a route stays on one "
                f"broker. Route to a queue with spec.brokerRef {queue.spec.broker_ref.name}."
            )
            return Finding(Reason.BrokerMismatch, message, False)
    return None


def box_is_free(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require that no older queue uses the same dead box."""
    owner = facts.box_owner
    if owner is None or facts.connection is None:
        return None
    box = queue.boxes(facts.connection.spec.is_redis).dead
    name = "a queue of another namespace" if owner.in_other_namespace else f"DeadLetterQueue {owner.name}"
    message = f"{box} is already the dead box of {name}. Set another spec.dead.name, or delete one of the two queues."
    return Finding(Reason.BoxConflict, message, False, BOXES_READY)


def redrive_origin_is_known(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """Require for a standing redrive that letters name their origin, and that a letter that fails again is noticed."""
    if queue.spec.redrive.strategy not in ("Automatic", "Selective"):
        return None
    return check_origin_topic(queue) or check_origin_offset(queue, "spec.redrive", "use strategy Manual")


def check_origin_topic(queue: DeadLetterQueue) -> Finding | None:
    """Return a finding if neither the dialect nor `spec.dead.origin` names the topic that letters came from."""
    dead = queue.spec.dead
    if dead.origin is not None or registry.names_topic(dead.dialect):
        return None
    message = (
        f"Letters of dialect {dead.dialect} do not name the topic they came from; "
        f"set spec.dead.origin of DeadLetterQueue {queue.name}."
    )
    return Finding(Reason.OriginUnknown, message, False, STALLED)


def check_origin_offset(queue: DeadLetterQueue, field: str, remedy: str) -> Finding | None:
    """Return a finding if a letter that was sent back and failed again would look like a new letter."""
    dialect = queue.spec.dead.dialect
    if registry.names_offset(dialect):
        return None
    message = (
        f"{field}: letters of dialect {dialect} do not name the offset they came from, so those that fail again "
        f"cannot be recognised; {remedy}."
    )
    return Finding(Reason.OriginUnknown, message, False, STALLED)


def secrets_exist(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Require the Secrets of the connection and of the delivery, with their keys."""
    keys = secret_keys(queue, facts.connection) if facts.connection else ()
    return check_secret_keys(queue.namespace, keys, facts.secrets)


def secret_keys(queue: DeadLetterQueue, connection: BrokerConnection) -> tuple[SecretKeyRef, ...]:
    """Return every Secret key that the queue's worker, or the operator on its behalf, reads."""
    delivery = queue.spec.delivery
    return connection.spec.secret_keys + (delivery.http.secret_keys if delivery else ())


def check_secret_keys(namespace: str, keys: Iterable[SecretKeyRef], facts: Mapping[str, SecretFact]) -> Finding | None:
    """Return a finding for the first of these keys that cannot be read."""
    return next((found for key in keys if (found := check_secret_key(namespace, key, facts[key.name]))), None)


def check_secret_key(namespace: str, ref: SecretKeyRef, fact: SecretFact) -> Finding | None:
    """Return why one key of a Secret cannot be read."""
    if not fact.readable:
        message = (
            fact.refusal or f"The operator may not read Secret {ref.name} in {namespace}; grant it get on Secrets."
        )
        return Finding(Reason.SecretNotReadable, message)
    if not fact.exists:
        return missing_reference("Secret", ref.name, Reason.SecretNotFound)
    if ref.key not in fact.keys:
        return Finding(Reason.SecretKeyMissing, f"Secret {ref.name} has no key {ref.key}; add it.")
    return None


def service_exists(_: DeadLetterQueue | Replay, facts: QueueFacts | ReplayFacts) -> Finding | None:
    """Require that the Services that messages or letters are sent to exist."""
    missing = next((name for name, exists in facts.services.items() if not exists), None)
    return missing_reference("Service", missing, Reason.ServiceNotFound) if missing else None


# These need the informer caches only. Problems that never go away by themselves come first.
OBJECT_CHECKS = (
    fields_are_supported,
    expressions_compile,
    redrive_origin_is_known,
    no_self_reference,
    no_cycle,
    target_has_no_routes,
    route_target_has_no_routes,
    routes_share_broker,
    names_are_legal,
    box_is_free,
    connection_exists,
    policy_exists,
    targets_exist,
)
# These need Secrets and Services, which are read with one GET each.
LOOKUP_CHECKS = (secrets_exist, service_exists)
