"""The API server refuses, lies or falls silent, and two operators run at once: nothing is lost and nothing is hurt."""

import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as driver

from tests.controller.lives import die, live_a_life
from tests.controller.operators import Operator, Place, running, until
from tests.controller.proxies import Proxy

LATER = "600"  # seconds: later than any test


@pytest.fixture
def proxy(place: Place) -> Iterator[Proxy]:
    with Proxy(place.server) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy, kubeconfig: Path, place: Place, tmp_path: Path) -> Callable[..., Operator]:
    """An operator behind the proxy, to be started and stopped at will."""
    config = proxy.kubeconfig(kubeconfig)
    return lambda **more: running(config, place.namespace, tmp_path / "operator.log", **more)


def plain(**more: Any) -> dict[str, Any]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": f"dead-{uuid.uuid4().hex[:8]}"}} | more


def test_two_operators_do_no_harm(place: Place, start: Callable[..., Operator], redis: str) -> None:
    one, other = start().until_ready(), start().until_ready()
    source = f"orders-{uuid.uuid4().hex[:8]}"
    live_a_life(place, redis, source)
    # The old one sleeps while the world goes on, and wakes with what it knew.
    assert one.process is not None
    assert other.process is not None
    one.process.send_signal(signal.SIGSTOP)
    place.apply("RetryPolicy", "standard", {"maxAttempts": 9})
    told = lambda: json.loads(place.get("configmap", "orders-courier")["data"]["assignment.json"])  # noqa: E731
    until("the new policy", lambda: told()["policy"]["max_attempts"] == 9)
    one.process.send_signal(signal.SIGCONT)
    place.kubectl("patch", "dlq", "orders", "--type=merge", "-p", '{"spec":{"alerts":{"depth":3}}}')
    until("seen", lambda: place.get("dlq", "orders")["status"]["observedGeneration"] == 3)
    until("the end of writing", lambda: is_calm(place))
    assert told()["policy"]["max_attempts"] == 9
    assert one.process.poll() is None
    assert other.process.poll() is None
    die(place, redis, source)


def is_calm(place: Place) -> bool:
    """Nothing is written for longer than both operators take to look at everything again."""
    versions = lambda: place.kubectl(  # noqa: E731
        "get", "dlq,configmap,deployment,job", "-o", "jsonpath={.items[*].metadata.resourceVersion}"
    )
    before = versions()
    time.sleep(12)
    return versions() == before


@pytest.mark.parametrize("status", [500, 429, 403, 200])  # 200: a page of some gateway in place of an answer
def test_an_api_server_that_refuses_is_waited_for(
    place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str, status: int
) -> None:
    with behind() as operator:
        operator.until_ready()
        place.redis(redis)
        place.until_condition("bkc", "broker", "Ready", "True")
        proxy.refuse = status
        place.apply("DeadLetterQueue", "during", plain())
        until("enough is refused", lambda: proxy.refused >= 10)
        proxy.refuse = 0
        place.until_condition("dlq", "during", "Ready", "True")
        assert operator.process.poll() is None


@pytest.mark.kill
@pytest.mark.timeout(600)
def test_two_minutes_without_an_api_server(place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str) -> None:
    with behind() as operator:
        operator.until_ready()
        place.redis(redis)
        place.until_condition("bkc", "broker", "Ready", "True")
        proxy.refuse = 500
        place.apply("DeadLetterQueue", "during", plain())
        time.sleep(120)
        proxy.refuse = 0
        place.until_condition("dlq", "during", "Ready", "True")
        assert operator.process.poll() is None


def test_who_is_told_to_come_back_later_does(
    place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str
) -> None:
    place.redis(redis)
    proxy.retry_after = 5
    with behind(DLQ_CONCURRENCY="8") as operator:
        operator.until_ready()
        place.until_condition("bkc", "broker", "Ready", "True")
        proxy.refuse, refused_at = 429, time.monotonic()
        many = [
            {"apiVersion": "deadletter.dev/v1alpha1", "kind": "DeadLetterQueue", "metadata": {"name": f"q-{n}"}}
            | {"spec": plain()}
            for n in range(60)
        ]
        place.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(one) for one in many))
        until("two refusals", lambda: proxy.refused >= 2)
        proxy.refuse = 0
        until("all Ready", lambda: place.kubectl("get", "dlq").count(" True ") == 60)
    # Only those that were under way when the first was refused came in the five seconds after it.
    first = next(at for at in proxy.came if at > refused_at)
    assert sum(first < at < first + 4 for at in proxy.came) <= 8


def test_a_change_that_no_watch_tells_is_seen(
    place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str
) -> None:
    place.redis(redis)
    with behind(DLQ_REJUDGE_SECONDS=LATER) as operator:
        operator.until_ready()
        place.apply("RetryPolicy", "slow", {})
        place.apply("DeadLetterQueue", "orders", plain(retryPolicyRef={"name": "slow"}))
        place.until_condition("dlq", "orders", "Ready", "True")
        proxy.hides = lambda event: True
        place.apply("DeadLetterQueue", "hidden", plain())
        place.until_condition("dlq", "hidden", "Ready", "True")
        place.kubectl("delete", "rtp", "slow")
        place.until_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
        place.kubectl("delete", "dlq", "hidden")
        until("forgotten", lambda: 'queue="hidden"' not in operator.metrics())


def test_a_policy_that_vanished_in_a_gap_is_missed(
    place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str
) -> None:
    place.redis(redis)
    with behind(DLQ_REJUDGE_SECONDS=LATER, DLQ_RELIST_SECONDS=LATER) as operator:
        operator.until_ready()
        place.apply("RetryPolicy", "slow", {})
        place.apply("DeadLetterQueue", "orders", plain(retryPolicyRef={"name": "slow"}))
        place.until_condition("dlq", "orders", "Ready", "True")
        proxy.gone = {"retrypolicies"}
        place.kubectl("delete", "rtp", "slow")
        until("410", lambda: proxy.answered_gone)
        proxy.gone = set()
        place.until_condition("dlq", "orders", "ReferencesResolved", "False", "RetryPolicyNotFound")
        assert operator.process.poll() is None


@pytest.mark.timeout(400)
def test_a_silent_watch_is_noticed(place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str) -> None:
    place.redis(redis)
    with behind(DLQ_REJUDGE_SECONDS=LATER, DLQ_RELIST_SECONDS=LATER) as operator:
        operator.until_ready()
        place.until_condition("bkc", "broker", "Ready", "True")
        lists = lambda: operator.metrics().split('relists_total{resource="deadletterqueues"} ')[1].split()[0]  # noqa: E731
        before = lists()
        proxy.silent = True
        place.apply("DeadLetterQueue", "unheard", plain())
        place.until_condition("dlq", "unheard", "Ready", "True")
        assert lists() != before


def test_a_list_of_the_past_destroys_nothing(
    place: Place, proxy: Proxy, behind: Callable[..., Any], redis: str
) -> None:
    place.redis(redis)
    spec = plain(deletionPolicy="Delete")
    with behind() as operator:
        operator.until_ready()
        place.apply("DeadLetterQueue", "orders", spec)
        place.until_condition("dlq", "orders", "Ready", "True")
        place.redis("redis://127.0.0.1:1/0")  # nobody listens there: the queue cannot go
        place.kubectl("delete", "dlq", "orders", "--wait=false")
        place.until_condition("dlq", "orders", "Ready", "False", "DeletionBlocked")
        until("a list of it", lambda: b"deletionTimestamp" in b"".join(proxy.listed["deadletterqueues"].values()))
        proxy.stale, proxy.silent = {"deadletterqueues"}, True
        operator.stop(signal.SIGKILL)
    place.kubectl("patch", "dlq", "orders", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    place.redis(redis)
    place.apply("DeadLetterQueue", "orders", spec, annotations={"deadletter.dev/take-over": spec["dead"]["name"]})
    with driver.Redis.from_url(redis) as client, behind() as operator:
        client.xadd(spec["dead"]["name"], {"value": b"x"})
        operator.until_ready()
        place.until_condition("dlq", "orders", "Ready", "True")
        until("depth", lambda: place.get("dlq", "orders")["status"].get("depth") == 1)
        assert client.xlen(spec["dead"]["name"]) == 1
