"""A broker that goes and comes back; boxes that are kept or deleted; letters that are counted."""

import json
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis as driver

from tests.bed import places
from tests.controller.operators import Operator, Place, until
from tests.controller.watches import watching
from tests.controller.wires import Wire


@pytest.fixture
def wire(redis: str) -> Iterator[Wire]:
    parts = urlsplit(redis)
    wire = Wire(parts.hostname or "", parts.port or 0).mend()
    yield wire
    wire.cut()


def queue(dead: str, **more: object) -> dict[str, object]:
    return {"brokerRef": {"name": "broker"}, "dead": {"name": dead}} | more


def test_a_watch_tells_the_story_of_an_outage(
    place: Place, operator: Operator, redis: str, wire: Wire, tmp_path: Path
) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    with watching(place.server, place.namespace, tmp_path / "watch", "-o", "wide") as transcript:
        place.redis(f"redis://127.0.0.1:{wire.port}/0")
        place.apply("DeadLetterQueue", "orders", queue(dead, alerts={"depth": 1}))
        transcript.tells(("True",))
        with driver.Redis.from_url(redis) as client:
            first, second = (client.xadd(dead, {"value": b"x"}) for _ in range(2))
            transcript.tells(("True", "DepthHigh"))
            wire.cut()
            transcript.tells(("False", "BrokerUnreachable"))
            wire.mend()
            place.until_condition("dlq", "orders", "Ready", "True")
            client.xdel(dead, first, second)
        transcript.tells(
            ("True",),
            ("True", "DepthHigh"),
            ("False", "BrokerUnreachable"),
            ("True", "DepthHigh"),
            ("True",),
        )


def test_an_outage_is_told_and_heals(place: Place, operator: Operator, redis: str, wire: Wire) -> None:
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    place.redis(f"redis://127.0.0.1:{wire.port}/0")
    place.apply("DeadLetterQueue", "orders", queue(dead, alerts={"depth": 1}))
    place.until_condition("dlq", "orders", "Ready", "True")
    with driver.Redis.from_url(redis) as client:
        for _ in range(3):
            client.xadd(dead, {"value": b"canary-payload"})
    until("depth", lambda: place.get("dlq", "orders")["status"].get("depth") == 3)
    place.until_condition("dlq", "orders", "Degraded", "True", "DepthHigh")
    series = f'dlq_letters{{namespace="{place.namespace}",queue="orders"}} 3.0'
    until("gauge", lambda: series in operator.metrics())
    wire.cut()
    place.until_condition("dlq", "orders", "Ready", "False", "BrokerUnreachable")
    place.until_condition("bkc", "broker", "Ready", "False", "BrokerUnreachable")
    until("no reading is not nought", lambda: "dlq_letters{" not in operator.metrics())
    assert re.search(r'^dlq_sweeps_failed_total{.*queue="orders"} [1-9]', operator.metrics(), re.MULTILINE)
    wire.mend()
    place.until_condition("dlq", "orders", "Ready", "True")
    place.until_condition("bkc", "broker", "Ready", "True")
    until("gauge again", lambda: series in operator.metrics())
    told = operator.log.read_text() + operator.metrics() + place.kubectl("get", "dlq,bkc,events", "-o", "yaml")
    assert "canary-payload" not in told
    assert operator.stop() == 0


def test_a_broker_that_swallows_all_words_keeps_no_other_waiting(
    place: Place, start: Callable[..., Operator], redis: str
) -> None:
    start(DLQ_CONCURRENCY="4").until_ready()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        place.redis(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "silent")
        many = [
            {"apiVersion": "deadletter.dev/v1alpha1", "kind": "DeadLetterQueue", "metadata": {"name": f"q-{n}"}}
            | {"spec": queue(f"dead-{n}", brokerRef={"name": "silent"})}
            for n in range(40)
        ]
        place.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(one) for one in many))
        until("all say so", lambda: place.kubectl("get", "dlq").count(" BrokerUnreachable") == len(many))
        place.redis(redis)
        place.apply("DeadLetterQueue", "well", queue(f"dead-{uuid.uuid4().hex[:8]}"))
        until("no queue of another broker waits", lambda: place.condition("dlq", "well", "Ready"), patience=15)


def test_boxes_are_kept_or_deleted_as_asked(place: Place, operator: Operator, redis: str, wire: Wire) -> None:
    place.redis(f"redis://127.0.0.1:{wire.port}/0")
    kept, dropped, held, free = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("kept", "dropped", "held", "free"))
    with driver.Redis.from_url(redis) as client:
        place.apply("DeadLetterQueue", "kept", queue(kept))
        for name, box in (("dropped", dropped), ("held", held), ("free", free)):
            place.apply("DeadLetterQueue", name, queue(box, deletionPolicy="Delete"))
        for name in ("kept", "dropped", "held", "free"):
            place.until_condition("dlq", name, "Ready", "True")
        for name in (kept, dropped, held, free):
            client.xadd(name, {"value": b"x"})
        assert place.get("dlq", "kept")["metadata"].get("finalizers") is None
        assert place.get("dlq", "dropped")["metadata"]["finalizers"] == ["deadletter.dev/boxes"]
        place.kubectl("delete", "dlq", "kept", "dropped", "--timeout=120s")
        assert client.exists(kept) == 1
        assert client.exists(dropped) == 0
        wire.cut()
        place.kubectl("delete", "dlq", "held", "free", "--wait=false")
        blocked = place.until_condition("dlq", "held", "Ready", "False", "DeletionBlocked")
        assert "deadletter.dev/force-delete=true" in blocked["message"]
        place.kubectl("annotate", "dlq", "free", "deadletter.dev/force-delete=true")
        until("forced", lambda: not place.get("dlq", "free"))
        assert place.get("dlq", "held")
        wire.mend()
        until("released", lambda: not place.get("dlq", "held"))
        assert client.exists(held) == 0
        assert client.exists(free) == 1


def test_what_an_older_queue_owns_is_not_deleted_with_a_younger(place: Place, operator: Operator, redis: str) -> None:
    """A connection was changed, so that two queues have one box: it goes with its owner, not with the other."""
    dead, elsewhere = f"dead-{uuid.uuid4().hex[:8]}", f"{redis.rpartition('/')[0]}/7"
    place.redis(redis)
    place.redis(elsewhere, "other")
    place.apply("DeadLetterQueue", "older", {"brokerRef": {"name": "broker"}, "dead": {"name": dead}})
    place.until_condition("dlq", "older", "Ready", "True")
    spec = {"brokerRef": {"name": "other"}, "dead": {"name": dead}, "deletionPolicy": "Delete"}
    until("another second", lambda: time.time() > created(place, "older") + 1)
    place.apply("DeadLetterQueue", "younger", spec)
    place.until_condition("dlq", "younger", "Ready", "True")
    place.redis(redis, "other")
    place.until_condition("dlq", "younger", "Ready", "False", "BoxConflict")
    place.kubectl("delete", "dlq", "younger", "--timeout=60s")
    with driver.Redis.from_url(redis) as client:
        assert client.exists(dead)


def test_what_shall_be_kept_is_kept_although_it_once_was_to_be_deleted(
    place: Place, operator: Operator, redis: str
) -> None:
    """The finalizer is of the time before, and a missing policy keeps the operator from taking it off."""
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    place.redis(redis)
    place.apply("RetryPolicy", "standard", {})
    spec = queue(dead, retryPolicyRef={"name": "standard"}, deletionPolicy="Delete")
    place.apply("DeadLetterQueue", "orders", spec)
    place.until_condition("dlq", "orders", "Ready", "True")
    place.kubectl("delete", "rtp", "standard")
    place.until_condition("dlq", "orders", "Ready", "False", "RetryPolicyNotFound")
    with driver.Redis.from_url(redis) as client:
        client.xadd(dead, {"value": b"x"})
        place.apply("DeadLetterQueue", "orders", spec | {"deletionPolicy": "Retain"})
        assert place.get("dlq", "orders")["metadata"]["finalizers"] == ["deadletter.dev/boxes"]
        place.kubectl("delete", "dlq", "orders", "--timeout=60s")
        assert client.xlen(dead) == 1


def test_a_letter_from_the_end_of_time_is_counted(place: Place, operator: Operator, redis: str) -> None:
    """Anybody may write any id into a stream: one letter must not end the operator, nor the sweep of the others."""
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    place.redis(redis)
    place.apply("DeadLetterQueue", "orders", queue(dead))
    place.until_condition("dlq", "orders", "Ready", "True")
    with driver.Redis.from_url(redis) as client:
        client.xadd(dead, {"value": b"x"}, id=f"{2**64 - 1}-1")
    until("depth", lambda: place.get("dlq", "orders")["status"].get("depth") == 1)
    assert place.get("dlq", "orders")["status"]["oldestLetterTime"] == "9999-12-31T23:59:59Z"
    assert operator.process is not None
    assert operator.process.poll() is None


def created(place: Place, name: str) -> float:
    stamp = place.get("dlq", name)["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()


def test_finalizers_are_released_before_an_uninstall(place: Place, operator: Operator, redis: str) -> None:
    place.redis(redis)
    place.apply("DeadLetterQueue", "orders", queue(f"dead-{uuid.uuid4().hex[:8]}", deletionPolicy="Delete"))
    place.until_condition("dlq", "orders", "Ready", "True")
    assert place.get("dlq", "orders")["metadata"]["finalizers"] == ["deadletter.dev/boxes"]
    environment = {"KUBECONFIG": str(operator.kubeconfig), "DLQ_NAMESPACES": place.namespace}
    environment |= {"PYTHONPATH": str(places.REPOSITORY / "operator")}
    command = [sys.executable, "-m", "deadletter", "release-finalizers"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "released 1 queues\n"), done.stderr
    # The operator still runs and does not put it back.
    place.kubectl("patch", "dlq", "orders", "--type=merge", "-p", '{"spec":{"alerts":{"depth":5}}}')
    until("seen", lambda: place.get("dlq", "orders")["status"]["observedGeneration"] == 2)
    assert place.get("dlq", "orders")["metadata"].get("finalizers") is None
    operator.stop()
    place.kubectl("delete", "dlq", "orders", "--timeout=120s")
