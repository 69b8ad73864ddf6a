"""Faults of the API server, and two operators at once: no change is missed and no data is destroyed."""

import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as driver

from tests.controller.api_proxy import ApiProxy
from tests.controller.lifecycle import create_and_change_everything, delete_everything
from tests.controller.operator_process import KubeNamespace, OperatorProcess, running_operator, wait_until

NEVER_S = "600"  # longer than any test


@pytest.fixture
def proxy(kube: KubeNamespace) -> Iterator[ApiProxy]:
    with ApiProxy(kube.server) as proxy:
        yield proxy


@pytest.fixture
def start_behind_proxy(
    proxy: ApiProxy, kubeconfig: Path, kube: KubeNamespace, tmp_path: Path
) -> Callable[..., OperatorProcess]:
    """Start operators that reach the API server through the proxy."""
    config = proxy.kubeconfig(kubeconfig)
    return lambda **more: running_operator(config, kube.namespace, tmp_path / "operator.log", **more)


def plain(**more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": f"dead-{uuid.uuid4().hex[:8]}"}} | more


def test_two_operators_at_once_converge(kube: KubeNamespace, start: Callable[..., OperatorProcess], redis: str) -> None:
    one, other = start().wait_until_ready(), start().wait_until_ready()
    source = f"orders-{uuid.uuid4().hex[:8]}"
    create_and_change_everything(kube, redis, source)
    # The first one is stopped during changes and continues with outdated caches.
    assert one.process is not None
    assert other.process is not None
    one.process.send_signal(signal.SIGSTOP)
    kube.apply("RetryPolicy", "standard", {"maxAttempts": 9})
    stored = lambda: json.loads(kube.get("configmap", "orders-courier")["data"]["assignment.json"])  # noqa: E731
    wait_until("the new policy", lambda: stored()["policy"]["max_attempts"] == 9)
    one.process.send_signal(signal.SIGCONT)
    kube.kubectl("patch", "dlq", "orders", "--type=merge", "-p", '{"spec":{"alerts":{"depth":3}}}')
    wait_until("seen", lambda: kube.get("dlq", "orders")["status"]["observedGeneration"] == 3)
    wait_until("the end of writing", lambda: has_calmed_down(kube))
    assert stored()["policy"]["max_attempts"] == 9
    assert one.process.poll() is None
    assert other.process.poll() is None
    delete_everything(kube, redis, source)


def has_calmed_down(kube: KubeNamespace) -> bool:
    """True if nothing is written for longer than a resync of both operators takes."""
    versions = lambda: kube.kubectl(  # noqa: E731
        "get", "dlq,configmap,deployment,job", "-o", "jsonpath={.items[*].metadata.resourceVersion}"
    )
    before = versions()
    time.sleep(12)
    return versions() == before


@pytest.mark.parametrize("status", [500, 429, 403, 200])  # 200: the HTML page of a gateway
def test_the_operator_waits_for_an_api_server_that_refuses(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str, status: int
) -> None:
    with start_behind_proxy() as operator:
        operator.wait_until_ready()
        kube.redis(redis)
        kube.wait_for_condition("bkc", "broker", "Ready", "True")
        proxy.error_status = status
        kube.apply("DeadLetterQueue", "during", plain())
        wait_until("enough is refused", lambda: proxy.refused_requests >= 10)
        proxy.error_status = 0
        kube.wait_for_condition("dlq", "during", "Ready", "True")
        assert operator.process.poll() is None


@pytest.mark.kill
@pytest.mark.timeout(600)
def test_two_minutes_without_an_api_server(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str
) -> None:
    with start_behind_proxy() as operator:
        operator.wait_until_ready()
        kube.redis(redis)
        kube.wait_for_condition("bkc", "broker", "Ready", "True")
        proxy.error_status = 500
        kube.apply("DeadLetterQueue", "during", plain())
        time.sleep(120)
        proxy.error_status = 0
        kube.wait_for_condition("dlq", "during", "Ready", "True")
        assert operator.process.poll() is None


def test_retry_after_is_honoured(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str
) -> None:
    kube.redis(redis)
    proxy.retry_after = 5
    with start_behind_proxy(DLQ_CONCURRENCY="8") as operator:
        operator.wait_until_ready()
        kube.wait_for_condition("bkc", "broker", "Ready", "True")
        proxy.error_status, refused_at = 429, time.monotonic()
        many = [
            {"apiVersion": "deadletter.dev/v1alpha1", "kind": "DeadLetterQueue", "metadata": {"name": f"q-{n}"}}
            | {"spec": plain()}
            for n in range(60)
        ]
        kube.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(one) for one in many))
        wait_until("two refusals", lambda: proxy.refused_requests >= 2)
        proxy.error_status = 0
        wait_until("all Ready", lambda: kube.kubectl("get", "dlq").count(" True ") == 60)
    # Within Retry-After only the requests arrive that were under way at the first 429.
    first = next(at for at in proxy.write_times if at > refused_at)
    assert sum(first < at < first + 4 for at in proxy.write_times) <= 8


def test_a_change_without_a_watch_event_is_found_by_the_relist(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str
) -> None:
    kube.redis(redis)
    with start_behind_proxy(DLQ_REJUDGE_SECONDS=NEVER_S) as operator:
        operator.wait_until_ready()
        kube.apply("RetryPolicy", "slow", {})
        kube.apply("DeadLetterQueue", "orders", plain(retryPolicyRef={"name": "slow"}))
        kube.wait_for_condition("dlq", "orders", "Ready", "True")
        proxy.hides_event = lambda event: True
        kube.apply("DeadLetterQueue", "hidden", plain())
        kube.wait_for_condition("dlq", "hidden", "Ready", "True")
        kube.kubectl("delete", "rtp", "slow")
        kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
        kube.kubectl("delete", "dlq", "hidden")
        wait_until("forgotten", lambda: 'queue="hidden"' not in operator.metrics())


def test_a_deletion_in_a_gap_of_the_watch_is_noticed(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str
) -> None:
    kube.redis(redis)
    with start_behind_proxy(DLQ_REJUDGE_SECONDS=NEVER_S, DLQ_RELIST_SECONDS=NEVER_S) as operator:
        operator.wait_until_ready()
        kube.apply("RetryPolicy", "slow", {})
        kube.apply("DeadLetterQueue", "orders", plain(retryPolicyRef={"name": "slow"}))
        kube.wait_for_condition("dlq", "orders", "Ready", "True")
        proxy.expired_watches = {"retrypolicies"}
        kube.kubectl("delete", "rtp", "slow")
        wait_until("410", lambda: proxy.expired_responses)
        proxy.expired_watches = set()
        kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
        assert operator.process.poll() is None


@pytest.mark.timeout(400)
def test_a_silent_watch_is_replaced(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str
) -> None:
    kube.redis(redis)
    with start_behind_proxy(DLQ_REJUDGE_SECONDS=NEVER_S, DLQ_RELIST_SECONDS=NEVER_S) as operator:
        operator.wait_until_ready()
        kube.wait_for_condition("bkc", "broker", "Ready", "True")
        lists = lambda: operator.metrics().split('relists_total{resource="deadletterqueues"} ')[1].split()[0]  # noqa: E731
        before = lists()
        proxy.silences_watches = True
        kube.apply("DeadLetterQueue", "unheard", plain())
        kube.wait_for_condition("dlq", "unheard", "Ready", "True")
        assert lists() != before


def test_an_outdated_list_destroys_nothing(
    kube: KubeNamespace, proxy: ApiProxy, start_behind_proxy: Callable[..., Any], redis: str
) -> None:
    kube.redis(redis)
    spec = plain(deletionPolicy="Delete")
    with start_behind_proxy() as operator:
        operator.wait_until_ready()
        kube.apply("DeadLetterQueue", "orders", spec)
        kube.wait_for_condition("dlq", "orders", "Ready", "True")
        kube.redis("redis://127.0.0.1:1/0")  # a closed port: the boxes cannot be deleted
        kube.kubectl("delete", "dlq", "orders", "--wait=false")
        kube.wait_for_condition("dlq", "orders", "Ready", "False", "DeletionBlocked")
        wait_until(
            "a list of it", lambda: b"deletionTimestamp" in b"".join(proxy.last_lists["deadletterqueues"].values())
        )
        proxy.stale_lists, proxy.silences_watches = {"deadletterqueues"}, True
        operator.stop(signal.SIGKILL)
    kube.kubectl("patch", "dlq", "orders", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kube.redis(redis)
    kube.apply("DeadLetterQueue", "orders", spec, annotations={"deadletter.dev/take-over": spec["dead"]["name"]})
    with driver.Redis.from_url(redis) as client, start_behind_proxy() as operator:
        client.xadd(spec["dead"]["name"], {"value": b"x"})
        operator.wait_until_ready()
        kube.wait_for_condition("dlq", "orders", "Ready", "True")
        wait_until("depth", lambda: kube.get("dlq", "orders")["status"].get("depth") == 1)
        assert client.xlen(spec["dead"]["name"]) == 1
