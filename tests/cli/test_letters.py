"""`letters list|show` on a real Kafka and a real Redis, as a person runs it."""

import asyncio
import json
import uuid

import pytest
import yaml

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay
from deadletter.brokers.connect import open_broker
from deadletter.cli import letters
from deadletter.core.letters import Category, Failure, Place
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.pod_template import WorkerImage
from deadletter.plan.replay_manifests import plan_replay
from deadletter.plan.worker_manifests import WorkerSettings
from tests.workers.replay_scene import Scene, letter

ANYWHERE = ("0.0.0.0/0", "::/0")
SECRET = "4111-1111-1111-1111"


@pytest.fixture(params=["kafka", "redis"])
async def desk(request, tmp_path):
    address = request.getfixturevalue(request.param)
    told = {"kafka": {"bootstrapServers": [address]}} if request.param == "kafka" else {"redis": {"url": address}}
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", told)
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        broken = Failure("Refused", "card 12 is blocked", Category.Validation)
        secret = letter(3, scene.name, broken)
        secret.value = json.dumps({"n": 3, "card": {"number": SECRET}}).encode()
        secret.headers = (("Authorization", SECRET.encode()), *secret.headers)
        await scene.bury(*(letter(number, scene.name) for number in range(3)), secret)
        await scene.replay(select={"where": "payload.n == 1"})
    write(tmp_path, scene, told)
    return tmp_path, scene


def write(folder, scene, told):
    kinds = {"connection": ("BrokerConnection", told), "queue": ("DeadLetterQueue", queue(scene))}
    for name, (kind, spec) in kinds.items():
        body = {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(body))
    made = Replay.from_body(
        {"metadata": {"name": "again", "namespace": "shop"}, "spec": {"queueRef": {"name": "queue"}}}
    )
    broker = BrokerConnection.from_body({"metadata": {"name": "broker", "namespace": "shop"}, "spec": told})
    owner = DeadLetterQueue.from_body({"metadata": {"name": "queue", "namespace": "shop"}, "spec": queue(scene)})
    workers = WorkerSettings(WorkerImage("image:1"), allow=ANYWHERE)
    config = plan_replay(made, ReplayFacts(queue=owner, connection=broker), workers, suspend=False)[0]
    for name, text in config["data"].items():
        (folder / name).write_text(text)


def queue(scene):
    return {
        "brokerRef": {"name": "broker"},
        "dead": {"name": scene.boxes.dead, "adopt": True},
        "redaction": {"headers": ["authorization"], "jsonPointers": ["/card/number"]},
    }


async def ask(capsys, *words):
    code = await asyncio.to_thread(letters.main, [str(word) for word in words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


async def test_open_letters_are_listed_and_settled_ones_are_not(desk, capsys):
    folder, scene = desk
    words = ("list", "--connection", folder / "connection.yaml", "--dead", scene.boxes.dead, "-o", "json")
    code, out, _ = await ask(capsys, *words)
    rows = json.loads(out)
    assert code == 0
    assert [row["error"]["type"] for row in rows] == ["Timeout", "Timeout", "Refused"]
    assert rows[0]["attempts"] == 5
    _, chosen, _ = await ask(capsys, *words, "--group", rows[2]["group"])
    assert [row["id"] for row in json.loads(chosen)] == [rows[2]["id"]]
    _, few, _ = await ask(capsys, *words, "--where", "payload.n == 2")
    assert [row["id"] for row in json.loads(few)] == [rows[1]["id"]]


async def test_the_oldest_come_first_whatever_partition_they_lie_in(kafka, tmp_path, capsys):
    told = {"kafka": {"bootstrapServers": [kafka]}}
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", told, partitions=3)
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        for number in range(12):
            await scene.bury(letter(number, scene.name), partition=2 - number % 3)
    write(tmp_path, scene, told)
    _, out, _ = await ask(capsys, "list", "--assignment", tmp_path, "--limit", "5", "-o", "json")
    assert [row["id"] for row in json.loads(out)] == ["2-0", "1-0", "0-0", "2-1", "1-1"]


async def test_in_a_pod_the_assignment_says_which_box(desk, capsys):
    folder, _ = desk
    code, out, _ = await ask(capsys, "list", "--assignment", folder)
    assert code == 0
    assert out.splitlines()[0].split() == ["ID", "TIME", "ATTEMPTS", "GROUP", "CATEGORY", "ERROR"]
    assert len(out.splitlines()) == 4


async def test_a_payload_is_shown_only_when_asked_and_redacted(desk, capsys, caplog):
    folder, _ = desk
    named = ("--connection", folder / "connection.yaml", "--queue", folder / "queue.yaml", "-o", "json")
    _, out, _ = await ask(capsys, "list", *named)
    last = json.loads(out)[-1]["id"]
    _, plain, _ = await ask(capsys, "show", last, *named)
    assert "payload" not in json.loads(plain)
    assert SECRET not in plain
    _, full, _ = await ask(capsys, "show", last, "--payload", *named)
    shown = json.loads(full)
    assert SECRET not in full
    assert json.loads(shown["payload"])["n"] == 3
    assert ["Authorization", "[redacted]"] in shown["headers"]
    _, text, _ = await ask(capsys, "show", last, "--payload", *named[:-2])
    assert "[redacted]" in text
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_in_a_pod_a_payload_is_redacted_as_the_queue_wants(desk, capsys):
    folder, _ = desk
    _, out, _ = await ask(capsys, "list", "--assignment", folder, "-o", "json")
    last = json.loads(out)[-1]["id"]
    code, full, _ = await ask(capsys, "show", last, "--payload", "--assignment", folder, "-o", "json")
    assert code == 0
    assert SECRET not in full
    assert json.loads(json.loads(full)["payload"]) == {"n": 3, "card": {"number": "[redacted]"}}
    assert ["Authorization", "[redacted]"] in json.loads(full)["headers"]
    (folder / "live.json").unlink()
    code, full, err = await ask(capsys, "show", last, "--payload", "--assignment", folder, "-o", "json")
    assert (code, full) == (1, "")
    assert "there is no assignment here" in err


async def test_a_letter_of_a_redis_stream_is_shown_with_the_entry_it_came_from(redis, tmp_path, capsys):
    told = {"redis": {"url": redis}}
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", told)
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        await scene.bury(letter(Place.from_entry_id("", "1794990614608-5").offset, scene.name))
    write(tmp_path, scene, told)
    _, out, _ = await ask(capsys, "list", "--assignment", tmp_path, "-o", "json")
    code, out, _ = await ask(capsys, "show", json.loads(out)[0]["id"], "--assignment", tmp_path)
    assert code == 0
    assert yaml.safe_load(out)["origin"] == {"topic": scene.name, "partition": 0, "offset": "1794990614608-5"}


async def test_what_is_not_there_is_said_plainly(desk, capsys):
    folder, scene = desk
    named = ("--connection", folder / "connection.yaml", "--dead", scene.boxes.dead)
    for name in ("0-999999", "7-0", "nonsense", "1-"):
        code, _, err = await ask(capsys, "show", name, *named)
        assert (code, err) == (1, f"there is no open letter {name}\n")
    code, _, err = await ask(capsys, "list", "--where", "attempts", *named)
    assert code == 1
    assert err.startswith("--where: ")
    assert "bool" in err
    with pytest.raises(SystemExit):
        letters.main(["list", "--limit", "0", *map(str, named)])
    assert "1 or more" in capsys.readouterr().err
    code, _, err = await ask(capsys, "list", "--assignment", folder / "nowhere")
    assert code == 1
    assert "--connection" in err
