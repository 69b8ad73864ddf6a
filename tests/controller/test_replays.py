"""Replays: one Apply at a time, counted from the ledger, suspended, refused, finished, expired."""

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
from tests.controller.operators import Operator, Place, until


def adopted(place: Place, redis: str, letters: int, **more: Any) -> str:
    """A stream with letters in our own dialect, taken over by a queue."""
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    with driver.Redis.from_url(redis) as client:
        for number in range(letters):
            client.xadd(dead, {"value": f"order {number}", "error": "Timeout: no answer"})
    place.redis(redis)
    spec = {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "adopt": True}}
    place.apply("DeadLetterQueue", "orders", spec | more)
    place.until_condition("dlq", "orders", "Ready", "True", "Adopted")
    return dead


def work(place: Place, name: str, folder: Path) -> int:
    """Be the kubelet: run the replayer of a Replay with the assignment its Job would mount."""
    folder.mkdir(exist_ok=True)
    for key, text in place.get("configmap", f"{name}-replay")["data"].items():
        (folder / key).write_text(text)
    environment = os.environ | {"DLQ_ASSIGNMENT_DIR": str(folder), "DLQ_TERMINATION_LOG": str(folder / "end")}
    environment |= {"PYTHONPATH": str(places.REPOSITORY / "operator"), "POD_NAME": f"{name}-0"}
    environment |= {"DLQ_HEALTH_PORT": str(ports.free("127.0.0.1")[0])}
    command = [sys.executable, "-m", "deadletter", "replay"]
    return subprocess.run(command, env=environment, timeout=120, check=False).returncode


def replay(queue: str = "orders", **more: Any) -> dict[str, Any]:
    return {"queueRef": {"name": queue}} | more


def events(place: Place, name: str) -> list[tuple[str, str]]:
    """What was told of a Replay, in order."""
    selector = f"involvedObject.kind=Replay,involvedObject.name={name}"
    found = json.loads(place.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"]
    return [(one["type"], one["reason"]) for one in sorted(found, key=lambda one: one["firstTimestamp"])]


def test_one_replay_at_a_time_and_its_counts(place: Place, operator: Operator, redis: str, tmp_path: Path) -> None:
    dead = adopted(place, redis, 5)
    target = f"back-{uuid.uuid4().hex[:8]}"
    with driver.Redis.from_url(redis) as client:
        client.xgroup_create(target, "shop", mkstream=True)
    place.apply("Replay", "first", replay(to={"name": target}, ttlSecondsAfterFinished=3600))
    place.until_condition("rply", "first", "Succeeded", "Unknown", "Freezing")
    until("job", lambda: place.get("job", "first-replay"))
    place.apply("Replay", "second", replay(to={"name": target}))
    waiting = place.until_condition("rply", "second", "Succeeded", "Unknown", "Queued")
    assert "Replay first" in waiting["message"]
    assert not place.get("job", "second-replay")
    place.apply("Replay", "preview", replay(mode="DryRun"))
    place.until_condition("rply", "preview", "Succeeded", "Unknown", "Queued")
    told = json.loads(place.get("configmap", "first-replay")["data"]["assignment.json"])
    assert (told["boxes"]["dead"], told["target"]["kind"], told["target"]["box"]) == (dead, "Box", target)
    assert work(place, "first", tmp_path / "first") == 0
    place.until_condition("rply", "first", "Succeeded", "True", "AllReplayed")
    status = place.get("rply", "first")["status"]
    assert (status["matched"], status["replayed"], status["remaining"]) == (5, 5, 0)
    until("its Events", lambda: events(place, "first") == [("Normal", "Started"), ("Normal", "AllReplayed")])
    assert status["completionTime"]
    until("the preview is next", lambda: place.get("job", "preview-replay"))
    assert work(place, "preview", tmp_path / "preview") == 0
    place.until_condition("rply", "preview", "Succeeded", "True")
    until("the next one begins", lambda: place.get("job", "second-replay"))
    assert work(place, "second", tmp_path / "second") == 0
    place.until_condition("rply", "second", "Succeeded", "True", "NothingMatched")
    with driver.Redis.from_url(redis) as client:
        assert client.xlen(target) == 5
    until("empty", lambda: place.get("dlq", "orders")["status"].get("depth") == 0)
    place.kubectl("patch", "rply", "first", "--type=merge", "-p", '{"spec":{"ttlSecondsAfterFinished":0}}')
    until("expired", lambda: not place.get("rply", "first"))


def test_a_replay_outlives_an_upgrade_of_the_operator(
    place: Place, start: Callable[..., Operator], redis: str, tmp_path: Path
) -> None:
    older = start(DLQ_IMAGE="workers:1").until_ready()
    adopted(place, redis, 3)
    place.apply("Replay", "back", replay(action="Discard"))
    until("job", lambda: place.get("job", "back-replay"))
    older.stop()
    start(DLQ_IMAGE="workers:2").until_ready()
    for hold in (True, False):
        place.kubectl("patch", "rply", "back", "--type=merge", "-p", json.dumps({"spec": {"suspend": hold}}))
        until("held or not", lambda hold=hold: place.get("job", "back-replay")["spec"]["suspend"] is hold)
    (container,) = place.get("job", "back-replay")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "workers:1"
    assert work(place, "back", tmp_path / "back") == 0
    place.until_condition("rply", "back", "Succeeded", "True", "AllReplayed")


def test_what_a_preview_selected_is_sent_although_preview_and_target_go(
    place: Place, operator: Operator, redis: str, tmp_path: Path
) -> None:
    adopted(place, redis, 3)
    target = {"name": f"other-{uuid.uuid4().hex[:8]}", "group": "bills"}
    delivery = {"http": {"url": "http://127.0.0.1:9/"}}
    with driver.Redis.from_url(redis) as client:
        client.xgroup_create(target["name"], "bills", mkstream=True)
    broker, invalid = {"brokerRef": {"name": "broker"}}, f"invalid-{uuid.uuid4().hex[:8]}"
    place.apply("DeadLetterQueue", "invalid", broker | {"dead": {"name": invalid}})
    routes = [{"match": "attempts > 3", "queueRef": {"name": "invalid"}}]
    place.apply("DeadLetterQueue", "other", broker | {"source": target, "delivery": delivery, "routes": routes})
    to = {"queueRef": {"name": "other"}}
    place.apply("Replay", "dry", replay(mode="DryRun", select={"limit": 1}, to=to))
    until("job", lambda: place.get("job", "dry-replay"))
    assert work(place, "dry", tmp_path / "dry") == 0
    place.until_condition("rply", "dry", "Succeeded", "True", "DryRunFinished")
    assert place.get("rply", "dry")["status"]["estimatedDuration"]
    place.apply("Replay", "back", replay(previewRef={"name": "dry"}, to=to))
    until("job", lambda: place.get("job", "back-replay"))
    told = json.loads(place.get("configmap", "back-replay")["data"]["assignment.json"])
    assert told["target"]["watched"] == [f"{{{target['name']}}}.bills.dlq", invalid]
    for gone in ("rply/dry", "dlq/other"):
        place.kubectl("delete", gone)
    place.kubectl("patch", "rply", "back", "--type=merge", "-p", '{"spec":{"rate":{"perSecond":9}}}')
    until("told", lambda: "9" in place.get("configmap", "back-replay")["data"]["live.json"])
    assert work(place, "back", tmp_path / "back") == 0
    place.until_condition("rply", "back", "Succeeded", "True", "AllReplayed")
    status = place.get("rply", "back")["status"]
    assert (status["matched"], status["targets"]) == (1, [{"name": target["name"], "letters": 1}])


def test_a_replay_that_cannot_begin_holds_nobody_back_and_joins_the_line_when_it_can(
    place: Place, operator: Operator, redis: str, tmp_path: Path
) -> None:
    adopted(place, redis, 2)
    place.apply("Replay", "early", replay(action="Discard", previewRef={"name": "look"}))
    place.until_condition("rply", "early", "Succeeded", "Unknown", "ReplayNotFound")
    place.apply("Replay", "first", replay(action="Discard", select={"limit": 1}))
    until("job", lambda: place.get("job", "first-replay"))
    place.apply("Replay", "look", replay(mode="DryRun", action="Discard"))
    for name in ("first", "look", "early"):
        until("its turn", lambda name=name: place.get("job", f"{name}-replay"))
        assert work(place, name, tmp_path / name) == 0
        place.until_condition("rply", name, "Succeeded", "True")
    assert place.get("rply", "early")["status"]["discarded"] == 1


def test_a_new_replay_of_an_old_name_begins_anew(place: Place, operator: Operator, redis: str, tmp_path: Path) -> None:
    adopted(place, redis, 2)
    for number in range(2):
        place.apply("Replay", "again", replay(action="Discard", select={"limit": 1}))
        uid = place.get("rply", "again")["metadata"]["uid"]
        told = lambda uid=uid: uid in json.dumps(place.get("configmap", "again-replay").get("data", {}))  # noqa: E731
        until("an assignment of its own", told)
        until("job", lambda uid=uid: uid in json.dumps(place.get("job", "again-replay")))
        assert work(place, "again", tmp_path / str(number)) == 0
        place.until_condition("rply", "again", "Succeeded", "True", "AllReplayed")
        assert place.get("rply", "again")["status"]["discarded"] == 1
        place.kubectl("delete", "rply", "again")


def test_suspend_rate_and_refusals(place: Place, operator: Operator, redis: str) -> None:
    adopted(place, redis, 1, redrive={"strategy": "Disabled"})
    place.apply("Replay", "apply", replay())
    found = place.until_condition("rply", "apply", "Stalled", "True", "RedriveDisabled")
    until("a warning", lambda: ("Warning", "RedriveDisabled") in events(place, "apply"))
    assert "only observes" in found["message"]
    place.apply("Replay", "dry", replay(mode="DryRun", rate={"perSecond": 5}))
    until("job", lambda: place.get("job", "dry-replay"))
    assert json.loads(place.get("configmap", "dry-replay")["data"]["live.json"])["rate"]["per_second"] == 5
    place.kubectl("patch", "rply", "dry", "--type=merge", "-p", '{"spec":{"suspend":true,"rate":{"perSecond":9}}}')
    until("suspended", lambda: place.get("job", "dry-replay")["spec"]["suspend"])
    rate = lambda: json.loads(place.get("configmap", "dry-replay")["data"]["live.json"])["rate"]["per_second"]  # noqa: E731
    until("rate", lambda: rate() == 9)
    place.until_condition("rply", "dry", "Suspended", "True")
    place.apply("Replay", "lost", replay("nowhere"))
    place.until_condition("rply", "lost", "Succeeded", "Unknown", "QueueNotFound")
    place.apply("Replay", "blind", replay(select={"where": "attempts +"}))
    place.until_condition("rply", "blind", "Stalled", "True", "InvalidSpec")
    where = f'namespace="{place.namespace}",queue="orders",replay="blind"'
    until("its alert", lambda: f"dlq_replay_failed{{{where}}} 1.0" in operator.metrics())
    place.kubectl("delete", "rply", "blind")
    until("the end of its alert", lambda: 'replay="blind"' not in operator.metrics())
    place.apply("Replay", "early", replay(mode="DryRun", previewRef={"name": "dry"}))
    place.until_condition("rply", "early", "Succeeded", "Unknown", "Pending")
