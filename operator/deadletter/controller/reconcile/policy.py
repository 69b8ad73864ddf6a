"""Reconcile a RetryPolicy: compile its expressions, and count the queues that use it."""

from deadletter.api.retry_policies import RetryPolicy
from deadletter.controller.context import ObjectKey, OperatorContext
from deadletter.controller.reconcile.facts import parse
from deadletter.controller.reconcile.status import ready_status, write_status
from deadletter.controller.state.dependents import BY_POLICY
from deadletter.kube import QUEUES, Body
from deadletter.plan.findings import Finding
from deadletter.plan.queue_checks import rules_compile


async def reconcile(context: OperatorContext, key: ObjectKey, policy: RetryPolicy, body: Body) -> bool:
    """Run one pass; it never needs to be repeated soon."""
    queues = context.informers[QUEUES].by_index(BY_POLICY, key.namespace, key.name)
    await write_status(context, key, policy, body, ready_status(policy, rules_compile(policy), len(queues)))
    return False


async def validate(_: OperatorContext, body: Body) -> list[Finding]:
    """Run the checks of the webhook."""
    policy = parse(RetryPolicy, body)
    found = rules_compile(policy) if policy else None
    return [found] if found else []
