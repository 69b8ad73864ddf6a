"""Replays: order, counts from the ledger, suspension, refusals, results and expiry."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis as driver

from tests.bed import places, ports
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until


def adopted(kube: KubeNamespace, redis: str, letters: int, **more: Any) -> str:
    """A stream with letters in our own dialect, taken over by a queue."""
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    with driver.Redis.from_url(redis) as client:
        for number in range(letters):
            client.xadd(dead, {"value": f"order {number}", "error": "Timeout: no answer"})
    kube.redis(redis)
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "adopt": True}}
    kube.apply("DeadLetterQueue", "orders", spec | more)
    kube.wait_for_condition("dlq", "orders", "Ready", "True", "Adopted")
    return dead


def work(kube: KubeNamespace, name: str, folder: Path) -> int:
    """Be the kubelet: run the replayer of a Replay with the assignment its Job would mount."""
    folder.mkdir(exist_ok=True)
    for key, text in kube.get("configmap", f"{name}-replay")["data"].items():
        (folder / key).write_text(text)
    environment = os.environ | {"DLQ_ASSIGNMENT_DIR": str(folder), "DLQ_TERMINATION_LOG": str(folder / "end")}
    environment |= {"PYTHONPATH": str(places.REPOSITORY / "operator"), "POD_NAME": f"{name}-0"}
    environment |= {"DLQ_HEALTH_PORT": str(ports.free("127.0.0.1")[0])}
    command = [sys.executable, "-m", "deadletter", "replay"]
    return subprocess.run(command, env=environment, timeout=120, check=False).returncode


def replay(queue: str = "orders", **more: Any) -> dict[str, Any]:
    return {"queueRef": {"name": queue}} | more


def events(kube: KubeNamespace, name: str) -> list[tuple[str, str]]:
    """What was assignment of a Replay, in order."""
    selector = f"involvedObject.kind=Replay,involvedObject.name={name}"
    found = json.loads(kube.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"]
    return [(one["type"], one["reason"]) for one in sorted(found, key=lambda one: one["firstTimestamp"])]


def test_replays_run_one_at_a_time_and_report_their_counts(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, tmp_path: Path
) -> None:
    dead = adopted(kube, redis, 5)
    target = f"back-{uuid.uuid4().hex[:8]}"
    with driver.Redis.from_url(redis) as client:
        client.xgroup_create(target, "shop", mkstream=True)
    kube.apply("Replay", "first", replay(to={"name": target}, ttlSecondsAfterFinished=3600))
    kube.wait_for_condition("rply", "first", "Succeeded", "Unknown", "Freezing")
    wait_until("job", lambda: kube.get("job", "first-replay"))
    kube.apply("Replay", "second", replay(to={"name": target}))
    waiting = kube.wait_for_condition("rply", "second", "Succeeded", "Unknown", "Queued")
    assert "Replay first" in waiting["message"]
    assert not kube.get("job", "second-replay")
    kube.apply("Replay", "preview", replay(mode="DryRun"))
    kube.wait_for_condition("rply", "preview", "Succeeded", "Unknown", "Queued")
    assignment = json.loads(kube.get("configmap", "first-replay")["data"]["assignment.json"])
    assert (assignment["boxes"]["dead"], assignment["target"]["kind"], assignment["target"]["box"]) == (
        dead,
        "Box",
        target,
    )
    assert work(kube, "first", tmp_path / "first") == 0
    kube.wait_for_condition("rply", "first", "Succeeded", "True", "AllReplayed")
    status = kube.get("rply", "first")["status"]
    assert (status["matched"], status["replayed"], status["remaining"]) == (5, 5, 0)
    wait_until("its Events", lambda: events(kube, "first") == [("Normal", "Started"), ("Normal", "AllReplayed")])
    assert status["completionTime"]
    wait_until("the preview is next", lambda: kube.get("job", "preview-replay"))
    assert work(kube, "preview", tmp_path / "preview") == 0
    kube.wait_for_condition("rply", "preview", "Succeeded", "True")
    wait_until("the next one begins", lambda: kube.get("job", "second-replay"))
    assert work(kube, "second", tmp_path / "second") == 0
    kube.wait_for_condition("rply", "second", "Succeeded", "True", "NothingMatched")
    with driver.Redis.from_url(redis) as client:
        assert client.xlen(target) == 5
    wait_until("empty", lambda: kube.get("dlq", "orders")["status"].get("depth") == 0)
    kube.kubectl("patch", "rply", "first", "--type=merge", "-p", '{"spec":{"ttlSecondsAfterFinished":0}}')
    wait_until("expired", lambda: not kube.get("rply", "first"))


def test_a_replay_outlives_an_upgrade_of_the_operator(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], redis: str, tmp_path: Path
) -> None:
    older = start(DLQ_IMAGE="workers:1").wait_until_ready()
    adopted(kube, redis, 3)
    kube.apply("Replay", "back", replay(action="Discard", select={"all": True}))
    wait_until("job", lambda: kube.get("job", "back-replay"))
    older.stop()
    start(DLQ_IMAGE="workers:2").wait_until_ready()
    for hold in (True, False):
        kube.kubectl("patch", "rply", "back", "--type=merge", "-p", json.dumps({"spec": {"suspend": hold}}))
        wait_until("held or not", lambda hold=hold: kube.get("job", "back-replay")["spec"]["suspend"] is hold)
    (container,) = kube.get("job", "back-replay")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "workers:1"
    assert kube.condition("rply", "back", "Finished")["status"] == "False"
    assert work(kube, "back", tmp_path / "back") == 0
    kube.wait_for_condition("rply", "back", "Succeeded", "True", "AllDiscarded")
    assert kube.condition("rply", "back", "Finished")["status"] == "True"


def test_a_previewed_selection_is_sent_although_preview_and_target_are_deleted(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, tmp_path: Path
) -> None:
    adopted(kube, redis, 3)
    target = {"name": f"other-{uuid.uuid4().hex[:8]}", "group": "bills"}
    delivery = {"http": {"url": "http://127.0.0.1:9/"}}
    with driver.Redis.from_url(redis) as client:
        client.xgroup_create(target["name"], "bills", mkstream=True)
    broker, invalid = {"brokerRef": {"name": "broker"}}, f"invalid-{uuid.uuid4().hex[:8]}"
    kube.apply("DeadLetterQueue", "invalid", broker | {"dead": {"name": invalid}})
    routes = [{"match": "attempts > 3", "queueRef": {"name": "invalid"}}]
    kube.apply("DeadLetterQueue", "other", broker | {"source": target, "delivery": delivery, "routes": routes})
    to = {"queueRef": {"name": "other"}}
    kube.apply("Replay", "dry", replay(mode="DryRun", select={"limit": 1}, to=to))
    wait_until("job", lambda: kube.get("job", "dry-replay"))
    assert work(kube, "dry", tmp_path / "dry") == 0
    kube.wait_for_condition("rply", "dry", "Succeeded", "True", "DryRunFinished")
    assert kube.get("rply", "dry")["status"]["estimatedDuration"]
    kube.apply("Replay", "back", replay(previewRef={"name": "dry"}, to=to))
    wait_until("job", lambda: kube.get("job", "back-replay"))
    assignment = json.loads(kube.get("configmap", "back-replay")["data"]["assignment.json"])
    assert assignment["target"]["watched"] == [f"{{{target['name']}}}.bills.dlq", invalid]
    for gone in ("rply/dry", "dlq/other"):
        kube.kubectl("delete", gone)
    kube.kubectl("patch", "rply", "back", "--type=merge", "-p", '{"spec":{"rate":{"perSecond":9}}}')
    wait_until("assignment", lambda: "9" in kube.get("configmap", "back-replay")["data"]["live.json"])
    assert work(kube, "back", tmp_path / "back") == 0
    kube.wait_for_condition("rply", "back", "Succeeded", "True", "AllReplayed")
    status = kube.get("rply", "back")["status"]
    assert (status["matched"], status["targets"]) == (1, [{"name": target["name"], "letters": 1}])


def test_a_replay_that_cannot_start_does_not_block_others_and_runs_later(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, tmp_path: Path
) -> None:
    adopted(kube, redis, 2)
    kube.apply("Replay", "early", replay(action="Discard", previewRef={"name": "look"}))
    kube.wait_for_condition("rply", "early", "Succeeded", "Unknown", "ReplayNotFound")
    kube.apply("Replay", "first", replay(action="Discard", select={"limit": 1}))
    wait_until("job", lambda: kube.get("job", "first-replay"))
    kube.apply("Replay", "look", replay(mode="DryRun", action="Discard"))
    for name in ("first", "look", "early"):
        wait_until("its turn", lambda name=name: kube.get("job", f"{name}-replay"))
        assert work(kube, name, tmp_path / name) == 0
        kube.wait_for_condition("rply", name, "Succeeded", "True")
    assert kube.get("rply", "early")["status"]["discarded"] == 1


def test_a_replay_that_was_created_again_starts_from_the_beginning(
    kube: KubeNamespace, operator: OperatorProcess, redis: str, tmp_path: Path
) -> None:
    adopted(kube, redis, 2)
    for number in range(2):
        kube.apply("Replay", "again", replay(action="Discard", select={"limit": 1}))
        uid = kube.get("rply", "again")["metadata"]["uid"]
        assignment = lambda uid=uid: uid in json.dumps(kube.get("configmap", "again-replay").get("data", {}))  # noqa: E731
        wait_until("an assignment of its own", assignment)
        wait_until("job", lambda uid=uid: uid in json.dumps(kube.get("job", "again-replay")))
        assert work(kube, "again", tmp_path / str(number)) == 0
        kube.wait_for_condition("rply", "again", "Succeeded", "True", "AllDiscarded")
        assert kube.get("rply", "again")["status"]["discarded"] == 1
        kube.kubectl("delete", "rply", "again")


def test_suspension_rate_changes_and_refusals(kube: KubeNamespace, operator: OperatorProcess, redis: str) -> None:
    adopted(kube, redis, 1, redrive={"strategy": "Disabled"})
    kube.apply("Replay", "apply", replay())
    found = kube.wait_for_condition("rply", "apply", "Stalled", "True", "RedriveDisabled")
    wait_until("a warning", lambda: ("Warning", "RedriveDisabled") in events(kube, "apply"))
    assert "only observes" in found["message"]
    kube.apply("Replay", "dry", replay(mode="DryRun", rate={"perSecond": 5}))
    wait_until("job", lambda: kube.get("job", "dry-replay"))
    assert json.loads(kube.get("configmap", "dry-replay")["data"]["live.json"])["rate"]["per_second"] == 5
    kube.kubectl("patch", "rply", "dry", "--type=merge", "-p", '{"spec":{"suspend":true,"rate":{"perSecond":9}}}')
    wait_until("suspended", lambda: kube.get("job", "dry-replay")["spec"]["suspend"])
    rate = lambda: json.loads(kube.get("configmap", "dry-replay")["data"]["live.json"])["rate"]["per_second"]  # noqa: E731
    wait_until("rate", lambda: rate() == 9)
    kube.wait_for_condition("rply", "dry", "Suspended", "True")
    kube.apply("Replay", "lost", replay("nowhere"))
    kube.wait_for_condition("rply", "lost", "Succeeded", "Unknown", "QueueNotFound")
    kube.apply("Replay", "blind", replay(select={"where": "attempts +"}))
    kube.wait_for_condition("rply", "blind", "Stalled", "True", "InvalidSpec")
    where = f'namespace="{kube.namespace}",queue="orders",replay="blind"'
    wait_until("its alert", lambda: f"dlq_replay_failed{{{where}}} 1.0" in operator.metrics())
    kube.kubectl("delete", "rply", "blind")
    wait_until("the end of its alert", lambda: 'replay="blind"' not in operator.metrics())
    kube.apply("Replay", "early", replay(mode="DryRun", previewRef={"name": "dry"}))
    kube.wait_for_condition("rply", "early", "Succeeded", "Unknown", "Pending")
