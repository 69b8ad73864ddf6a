"""Checks of what a queue names: the same chain judges in the reconcile and in the webhook."""

from collections.abc import Iterable, Mapping

from deadletter.api.base import SecretKeyRef
from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy
from deadletter.core import selection
from deadletter.core.dialects import origins
from deadletter.core.reasons import Reason
from deadletter.plan.facts import QueueFacts, SecretFact
from deadletter.plan.findings import BOXES, SPEC, Finding


def missing_reference(kind: str, name: str, reason: Reason) -> Finding:
    """Something that is named does not exist."""
    return Finding(reason, f"{kind} {name} does not exist; create it first.", is_transient=True, is_missing_reference=True)


def fields_are_supported(thing: DeadLetterQueue | BrokerConnection | Replay, _: object = None) -> Finding | None:
    """Reject fields that the schema accepts and no release implements yet."""
    fields = unsupported_fields(thing)
    return Finding(Reason.NotSupportedYet, f"Not supported yet: {', '.join(fields)}.", False, SPEC) if fields else None


def unsupported_fields(resource: DeadLetterQueue | BrokerConnection | Replay) -> list[str]:
    """Return the paths and values of the fields that are not implemented yet."""
    if isinstance(resource, BrokerConnection) and resource.spec.redis and resource.spec.redis.mode != "Standalone":
        return [f"spec.redis.mode: {resource.spec.redis.mode}"]
    return []


def expressions_compile(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """Every CEL expression is one, and says yes or no."""
    texts = {f"spec.routes[{at}].match": route.match for at, route in enumerate(queue.spec.routes)}
    texts |= {"spec.redrive.where": queue.spec.redrive.where} if queue.spec.redrive.where else {}
    return next((found for field, text in texts.items() if (found := check_expression(field, text))), None)


def check_expression(field: str, text: str) -> Finding | None:
    """What is wrong with one expression, and where."""
    try:
        selection.Predicate(text)
    except selection.PredicateError as error:
        return Finding(Reason.InvalidSpec, f"{field}: {error}", False, SPEC)
    return None


def rules_compile(policy: RetryPolicy) -> Finding | None:
    """Every rule's expression is one, and says yes or no."""
    texts = {f"spec.rules[{at}].match": rule.match for at, rule in enumerate(policy.spec.rules)}
    return next((found for field, text in texts.items() if (found := check_expression(field, text))), None)


def no_self_reference(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """A queue cannot be its own dead-letter target."""
    if any(route.queue_ref.name == queue.name for route in queue.spec.routes):
        return Finding(Reason.SelfReference, f"DeadLetterQueue {queue.name} cannot reference itself.", False)
    return None


def connection_exists(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """The broker must be known."""
    if facts.connection is None:
        return missing_reference("BrokerConnection", queue.spec.broker_ref.name, Reason.BrokerConnectionNotFound)
    return None


def names_are_legal(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A Kafka takes fewer names than a Redis."""
    illegal = queue.illegal_names(facts.connection.spec.is_redis) if facts.connection else ()
    if illegal:
        sentence = f"{', '.join(illegal)}: a Kafka topic's name is made of letters, digits, '.', '_' and '-'."
        return Finding(Reason.InvalidSpec, sentence, False, SPEC)
    return None


def policy_exists(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """The policy must be known."""
    named = queue.spec.retry_policy_ref
    if named is not None and facts.policy is None:
        return missing_reference("RetryPolicy", named.name, Reason.RetryPolicyNotFound)
    return None


def targets_exist(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Queues that routes name must be known."""
    for name in route_targets(queue):
        if name not in facts.queues:
            return missing_reference("DeadLetterQueue", name, Reason.QueueNotFound)
    return None


def route_targets(queue: DeadLetterQueue) -> tuple[str, ...]:
    """Every queue its routes name, once."""
    return tuple(dict.fromkeys(route.queue_ref.name for route in queue.spec.routes))


def no_cycle(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Letters must not travel in a circle."""
    for name in route_targets(queue):
        target = facts.queues.get(name)
        if target is not None and name != queue.name and queue.name in route_targets(target):
            sentence = f"DeadLetterQueue {queue.name} and {name} route to each other: a cycle."
            return Finding(Reason.CyclicReference, sentence, False)
    return None


def target_has_no_routes(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A target has no target of its own."""
    for name in route_targets(queue):
        target = facts.queues.get(name)
        if target is not None and target.spec.routes:
            return Finding(
                Reason.ChainedReference,
                f"DeadLetterQueue {name} is a dead-letter target and cannot have its own dead-letter queue.",
                False,
            )
    return None


def route_target_has_no_routes(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A queue that others route to gets no routes."""
    users = sorted(name for name, other in facts.queues.items() if name != queue.name and queue.name in route_targets(other))
    if users and queue.spec.routes:
        return Finding(
            Reason.ChainedReference,
            f"DeadLetterQueue {queue.name} is the dead-letter target of {', '.join(users[:5])} "
            "and cannot have its own dead-letter queue.",
            False,
        )
    return None


def routes_share_broker(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A letter and its route's box lie on one broker."""
    for name in route_targets(queue):
        target = facts.queues.get(name)
        if target is not None and target.spec.broker_ref.name != queue.spec.broker_ref.name:
            sentence = f"DeadLetterQueue {name} lives on another broker; a route stays on one BrokerConnection."
            return Finding(Reason.BrokerMismatch, sentence, False)
    return None


def box_is_free(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """One dead box has one owner, the oldest queue."""
    if facts.box_owner is None or facts.connection is None:
        return None
    box = queue.boxes(facts.connection.spec.is_redis).dead
    whose = "a queue of another namespace" if facts.box_owner.in_other_namespace else f"DeadLetterQueue {facts.box_owner.name}"
    return Finding(Reason.BoxConflict, f"{box} is already the dead box of {whose}.", False, BOXES)


def redrive_origin_is_known(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """Letters go back by themselves only where it is known whence they came and whether they came back."""
    if queue.spec.redrive.strategy not in ("Automatic", "Selective"):
        return None
    return check_origin_topic(queue) or check_origin_offset(queue, "spec.redrive", "use strategy Manual")


def check_origin_topic(queue: DeadLetterQueue) -> Finding | None:
    """Does nothing tell the topic that letters came from?"""
    dead = queue.spec.dead
    if dead.origin is not None or origins.names_topic(dead.dialect):
        return None
    sentence = f"Letters of dialect {dead.dialect} do not name the topic they came from"
    return Finding(
        Reason.OriginUnknown, f"{sentence}; set spec.dead.origin of DeadLetterQueue {queue.name}.", False, SPEC
    )


def check_origin_offset(queue: DeadLetterQueue, field: str, advice: str) -> Finding | None:
    """Would a letter that was sent back and failed again look like a new one?"""
    dialect = queue.spec.dead.dialect
    if origins.names_offset(dialect):
        return None
    sentence = f"{field}: letters of dialect {dialect} do not name the offset they came from, so those that fail again"
    return Finding(Reason.OriginUnknown, f"{sentence} cannot be recognised; {advice}.", False, SPEC)


def secrets_exist(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Secrets of the broker and of the delivery are there, with their keys."""
    keys = secret_keys(queue, facts.connection) if facts.connection else ()
    return check_secret_keys(queue.namespace, keys, facts.secrets)


def secret_keys(queue: DeadLetterQueue, connection: BrokerConnection) -> tuple[SecretKeyRef, ...]:
    """Every key that the queue's worker, or the operator on its behalf, must read."""
    delivery = queue.spec.delivery
    return connection.spec.secret_keys + (delivery.http.secret_keys if delivery else ())


def check_secret_keys(namespace: str, keys: Iterable[SecretKeyRef], facts: Mapping[str, SecretFact]) -> Finding | None:
    """What is wrong with the first of these keys that cannot be read."""
    return next((found for key in keys if (found := check_secret_key(namespace, key, facts[key.name]))), None)


def check_secret_key(namespace: str, ref: SecretKeyRef, fact: SecretFact) -> Finding | None:
    """What is wrong with one key of a Secret."""
    if not fact.readable:
        return Finding(Reason.SecretNotReadable, fact.refusal or f"Secret {ref.name} may not be read in {namespace}.")
    if not fact.exists:
        return missing_reference("Secret", ref.name, Reason.SecretNotFound)
    if ref.key not in fact.keys:
        return Finding(Reason.SecretKeyMissing, f"Secret {ref.name} has no key {ref.key}; add it.")
    return None


def service_exists(_: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """The Service that messages are delivered to is there."""
    absent = next((name for name, exists in facts.services.items() if not exists), None)
    return missing_reference("Service", absent, Reason.ServiceNotFound) if absent else None


# In the order users should hear them: what can never heal first.
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
QUEUE_CHECKS = (*OBJECT_CHECKS, secrets_exist, service_exists)
