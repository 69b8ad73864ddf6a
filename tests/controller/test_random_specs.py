"""Random sequences of valid specs: the final state of a queue depends on its last spec only."""

import itertools
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.controller.lifecycle import final_state
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until

Step = tuple[dict[str, Any], bool, int]  # a spec, whether to wait for its reconcile, and maxAttempts of the policy
NUMBERS = itertools.count()
SHARED = {
    "retryPolicyRef": [None, {"name": "quick"}, {"name": "slow"}, {"name": "missing"}],
    "suspend": [False, True],
    "alerts": [None, {"depth": 3}, {"depth": 5, "age": "1h"}],
    "capacity": [None, {"maxLetters": 5}, {"maxLetters": 9, "onFull": "Alert"}],
    "deletionPolicy": ["Retain", "Delete"],
}
REDRIVES = [{}, {"strategy": "Automatic"}, {"strategy": "Selective", "where": "attempts < 3"}]
ROUTES = [[], [{"match": "attempts > 3", "queueRef": {"name": "target"}}]]
HTTP = [{"url": "http://billing.example/orders"}, {"url": "http://billing.example/others", "method": "PUT"}]
RESOURCES = [None, {"requests": {"cpu": "100m"}, "limits": {"memory": "0.5Gi"}}]


def specs(delivered: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Specs of one shape; only mutable fields vary."""
    parts = {name: st.sampled_from(values) for name, values in SHARED.items()}
    if delivered:
        delivery = {"http": HTTP, "replicas": [0, 1, 3], "resources": RESOURCES}
        chosen = {name: st.sampled_from(values) for name, values in delivery.items()}
        parts |= {"delivery": st.fixed_dictionaries(chosen).map(without_nulls), "routes": st.sampled_from(ROUTES)}
    else:
        parts |= {"redrive": st.sampled_from(REDRIVES)}
    return st.fixed_dictionaries(parts).map(without_nulls)


def with_existing_policy_at_the_end(steps: list[Step]) -> list[Step]:
    """Replace a missing policy in the last spec, because with it the final state would depend on earlier specs."""
    *others, (spec, is_awaited, attempts) = steps
    if spec.get("retryPolicyRef") == {"name": "missing"}:
        spec = spec | {"retryPolicyRef": {"name": "slow"}}
    return [*others, (spec, is_awaited, attempts)]


def without_nulls(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if value is not None}


SEQUENCES = (
    st.booleans()
    .flatmap(
        lambda delivered: st.lists(
            st.tuples(specs(delivered), st.booleans(), st.integers(1, 9)), min_size=2, max_size=6
        )
    )
    .map(with_existing_policy_at_the_end)
)


def with_immutable_fields(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """Add the immutable fields."""
    boxes = {"source": {"name": f"{name}-in", "group": "billing"}} if "delivery" in spec else {}
    return spec | {"brokerRef": {"name": "broker"}, "dead": {"name": f"{name}-dead"}} | boxes


def is_reconciled(kube: KubeNamespace, name: str) -> bool:
    body = kube.get("dlq", name)
    return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])


def compare_with_direct_creation(kube: KubeNamespace, steps: list[Step]) -> None:
    number, tag = next(NUMBERS), uuid.uuid4().hex[:8]
    changed, direct = (f"{way}-{number}-{tag}" for way in ("changed", "direct"))
    for spec, is_awaited, attempts in steps:
        kube.apply("DeadLetterQueue", changed, with_immutable_fields(spec, changed))
        kube.apply("RetryPolicy", "quick", {"maxAttempts": attempts})
        if is_awaited:
            wait_until("the queue is reconciled", lambda: is_reconciled(kube, changed))
    kube.apply("DeadLetterQueue", direct, with_immutable_fields(steps[-1][0], direct))
    for name in (changed, direct):
        wait_until("the queue is reconciled", lambda name=name: is_reconciled(kube, name))
    states = lambda: [final_state(kube, name, of=name) for name in (changed, direct)]  # noqa: E731
    try:
        wait_until("both are the same", lambda: states()[0] == states()[1])
    except AssertionError as error:
        one, other = states()
        raise AssertionError([(one.get(key), other.get(key)) for key in one if one[key] != other.get(key)]) from error
    kube.kubectl("delete", "dlq", changed, direct, "--timeout=120s")


def check_random_sequences(kube: KubeNamespace, redis: str, count: int) -> None:
    kube.redis(redis)
    kube.apply("RetryPolicy", "slow", {"maxAttempts": 3})
    kube.apply("DeadLetterQueue", "target", with_immutable_fields({}, f"target-{uuid.uuid4().hex[:8]}"))

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=SEQUENCES)
    def each(steps: list[Step]) -> None:
        compare_with_direct_creation(kube, steps)

    each()


@pytest.mark.timeout(600)
def test_the_final_state_depends_on_the_last_spec_only(
    kube: KubeNamespace, operator: OperatorProcess, redis: str
) -> None:
    check_random_sequences(kube, redis, 4)


@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_many_random_sequences(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    check_random_sequences(kube, redis, 40)
