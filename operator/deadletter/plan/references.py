"""Checks of what a queue names: the same chain judges in the reconcile and in the webhook."""

from deadletter.api.deadletterqueues import DeadLetterQueue
from deadletter.api.unsupported import unsupported
from deadletter.core import selection
from deadletter.core.reasons import Reason
from deadletter.plan.facts import QueueFacts, SecretFact
from deadletter.plan.findings import BOXES, SPEC, Finding


def missing(kind: str, name: str, reason: Reason) -> Finding:
    """Something that is named does not exist."""
    return Finding(reason, f"{kind} {name} does not exist; create it first.", heals=True, missing=True)


def is_built(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """A field that nothing carries out yet is said openly."""
    fields = unsupported(queue)
    return Finding(Reason.NotSupportedYet, f"not built yet: {', '.join(fields)}", False, SPEC) if fields else None


def expressions_compile(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """Every CEL expression is one, and says yes or no."""
    texts = {f"spec.routes[{at}].match": route.match for at, route in enumerate(queue.spec.routes)}
    texts |= {"spec.redrive.where": queue.spec.redrive.where} if queue.spec.redrive.where else {}
    return next((found for field, text in texts.items() if (found := expression(field, text))), None)


def expression(field: str, text: str) -> Finding | None:
    """What is wrong with one expression, and where."""
    try:
        selection.Predicate(text)
    except selection.PredicateError as error:
        return Finding(Reason.InvalidSpec, f"{field}: {error}", False, SPEC)
    return None


def no_self_reference(queue: DeadLetterQueue, _: QueueFacts) -> Finding | None:
    """A queue cannot be its own dead-letter target."""
    if any(route.queue_ref.name == queue.name for route in queue.spec.routes):
        return Finding(Reason.SelfReference, f"DeadLetterQueue {queue.name} cannot reference itself.", False)
    return None


def connection_exists(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """The broker must be known."""
    if facts.connection is None:
        return missing("BrokerConnection", queue.spec.broker_ref.name, Reason.BrokerConnectionNotFound)
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
        return missing("RetryPolicy", named.name, Reason.RetryPolicyNotFound)
    return None


def targets_exist(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Queues that routes name must be known."""
    for name in targets(queue):
        if name not in facts.queues:
            return missing("DeadLetterQueue", name, Reason.QueueNotFound)
    return None


def targets(queue: DeadLetterQueue) -> tuple[str, ...]:
    """Every queue its routes name, once."""
    return tuple(dict.fromkeys(route.queue_ref.name for route in queue.spec.routes))


def no_cycle(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Letters must not travel in a circle."""
    for name in targets(queue):
        target = facts.queues.get(name)
        if target is not None and name != queue.name and queue.name in targets(target):
            sentence = f"DeadLetterQueue {queue.name} and {name} route to each other: a cycle."
            return Finding(Reason.CyclicReference, sentence, False)
    return None


def no_chain(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A target has no target of its own."""
    for name in targets(queue):
        target = facts.queues.get(name)
        if target is not None and target.spec.routes:
            return Finding(
                Reason.ChainedReference,
                f"DeadLetterQueue {name} is a dead-letter target and cannot have its own dead-letter queue.",
                False,
            )
    return None


def no_chain_through_me(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A queue that others route to gets no routes."""
    users = sorted(name for name, other in facts.queues.items() if name != queue.name and queue.name in targets(other))
    if users and queue.spec.routes:
        return Finding(
            Reason.ChainedReference,
            f"DeadLetterQueue {queue.name} is the dead-letter target of {', '.join(users[:5])} "
            "and cannot have its own dead-letter queue.",
            False,
        )
    return None


def same_broker(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """A letter and its route's box lie on one broker."""
    for name in targets(queue):
        target = facts.queues.get(name)
        if target is not None and target.spec.broker_ref.name != queue.spec.broker_ref.name:
            sentence = f"DeadLetterQueue {name} lives on another broker; a route stays on one BrokerConnection."
            return Finding(Reason.BrokerMismatch, sentence, False)
    return None


def box_is_free(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """One dead box has one owner, the oldest queue."""
    if facts.owner is None or facts.connection is None:
        return None
    box = queue.boxes(facts.connection.spec.is_redis).dead
    whose = "a queue of another namespace" if facts.owner.foreign else f"DeadLetterQueue {facts.owner.name}"
    return Finding(Reason.BoxConflict, f"{box} is already the dead box of {whose}.", False, BOXES)


def secrets_exist(queue: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """Secrets of the broker and of the delivery are there, with their keys."""
    return next(
        (found for name in facts.secrets if (found := secret(queue.namespace, name, facts.secrets[name]))), None
    )


def secret(namespace: str, name: str, fact: SecretFact) -> Finding | None:
    """What is wrong with one Secret."""
    if not fact.readable:
        return Finding(Reason.SecretNotReadable, fact.refusal or f"Secret {name} may not be read in {namespace}.")
    if not fact.exists:
        return missing("Secret", name, Reason.SecretNotFound)
    return None


def service_exists(_: DeadLetterQueue, facts: QueueFacts) -> Finding | None:
    """The Service that messages are delivered to is there."""
    absent = next((name for name, exists in facts.services.items() if not exists), None)
    return missing("Service", absent, Reason.ServiceNotFound) if absent else None


# In the order users should hear them: what can never heal first.
GRAPH_CHECKS = (
    is_built,
    expressions_compile,
    no_self_reference,
    no_cycle,
    no_chain,
    no_chain_through_me,
    same_broker,
    names_are_legal,
    box_is_free,
    connection_exists,
    policy_exists,
    targets_exist,
)
QUEUE_CHECKS = (*GRAPH_CHECKS, secrets_exist, service_exists)
