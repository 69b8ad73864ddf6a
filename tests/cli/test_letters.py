"""The commands `letters list` and `letters show` on a real Kafka and a real Redis."""

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
from deadletter.plan.common_manifests import WorkerImage
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.replay_manifests import plan_replay
from deadletter.plan.worker_manifests import WorkerSettings
from tests.workers.replay_scene import Scene, letter

ANYWHERE = ("0.0.0.0/0", "::/0")
SECRET = "4111-1111-1111-1111"


@pytest.fixture(params=["kafka", "redis"])
async def buried(request, tmp_path):
    address = request.getfixturevalue(request.param)
    broker_spec = (
        {"kafka": {"bootstrapServers": [address]}} if request.param == "kafka" else {"redis": {"url": address}}
    )
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", broker_spec)
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        broken = Failure("Refused", "card 12 is blocked", Category.Validation)
        secret = letter(3, scene.name, broken)
        secret.value = json.dumps({"n": 3, "card": {"number": SECRET}}).encode()
        secret.headers = (("Authorization", SECRET.encode()), *secret.headers)
        await scene.bury(*(letter(number, scene.name) for number in range(3)), secret)
        await scene.replay(select={"where": "payload.n == 1"})
    write_files(tmp_path, scene, broker_spec)
    return tmp_path, scene


def write_files(directory, scene, broker_spec):
    kinds = {"connection": ("BrokerConnection", broker_spec), "queue": ("DeadLetterQueue", queue_spec(scene))}
    for name, (kind, spec) in kinds.items():
        body = {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(body))
    made = Replay.from_body(
        {"metadata": {"name": "again", "namespace": "shop"}, "spec": {"queueRef": {"name": "queue"}}}
    )
    broker = BrokerConnection.from_body({"metadata": {"name": "broker", "namespace": "shop"}, "spec": broker_spec})
    owner = DeadLetterQueue.from_body({"metadata": {"name": "queue", "namespace": "shop"}, "spec": queue_spec(scene)})
    workers = WorkerSettings(WorkerImage("image:1"), allow=ANYWHERE)
    config = plan_replay(made, ReplayFacts(queue=owner, connection=broker), workers, suspend=False)[0]
    for name, text in config["data"].items():
        (directory / name).write_text(text)


def queue_spec(scene):
    return {
        "brokerRef": {"name": "broker"},
        "dead": {"name": scene.boxes.dead, "adopt": True},
        "redaction": {"headers": ["authorization"], "jsonPointers": ["/card/number"]},
    }


async def run_letters(capsys, *arguments):
    code = await asyncio.to_thread(letters.main, [str(one) for one in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


async def test_list_prints_open_letters_only(buried, capsys):
    directory, scene = buried
    arguments = ("list", "--connection", directory / "connection.yaml", "--dead", scene.boxes.dead, "-o", "json")
    code, out, _ = await run_letters(capsys, *arguments)
    rows = json.loads(out)
    assert code == 0
    assert [row["error"]["type"] for row in rows] == ["Timeout", "Timeout", "Refused"]
    assert rows[0]["attempts"] == 5
    _, chosen, _ = await run_letters(capsys, *arguments, "--group", rows[2]["group"])
    assert [row["id"] for row in json.loads(chosen)] == [rows[2]["id"]]
    _, few, _ = await run_letters(capsys, *arguments, "--where", "payload.n == 2")
    assert [row["id"] for row in json.loads(few)] == [rows[1]["id"]]


async def test_list_prints_the_oldest_of_all_partitions_first(kafka, tmp_path, capsys):
    broker_spec = {"kafka": {"bootstrapServers": [kafka]}}
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", broker_spec, partitions=3)
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        for number in range(12):
            await scene.bury(letter(number, scene.name), partition=2 - number % 3)
    write_files(tmp_path, scene, broker_spec)
    _, out, _ = await run_letters(capsys, "list", "--assignment", tmp_path, "--limit", "5", "-o", "json")
    assert [row["id"] for row in json.loads(out)] == ["2-0", "1-0", "0-0", "2-1", "1-1"]


async def test_list_reads_the_box_of_an_assignment(buried, capsys):
    directory, _ = buried
    code, out, _ = await run_letters(capsys, "list", "--assignment", directory)
    assert code == 0
    assert out.splitlines()[0].split() == ["ID", "TIME", "ATTEMPTS", "GROUP", "CATEGORY", "ERROR"]
    assert len(out.splitlines()) == 4


async def test_a_payload_is_shown_on_request_only_and_redacted(buried, capsys, caplog):
    directory, _ = buried
    named = ("--connection", directory / "connection.yaml", "--queue", directory / "queue.yaml", "-o", "json")
    _, out, _ = await run_letters(capsys, "list", *named)
    last = json.loads(out)[-1]["id"]
    _, plain, _ = await run_letters(capsys, "show", last, *named)
    assert "payload" not in json.loads(plain)
    assert SECRET not in plain
    _, full, _ = await run_letters(capsys, "show", last, "--payload", *named)
    shown = json.loads(full)
    assert SECRET not in full
    assert json.loads(shown["payload"])["n"] == 3
    assert ["Authorization", "[redacted]"] in shown["headers"]
    _, text, _ = await run_letters(capsys, "show", last, "--payload", *named[:-2])
    assert "[redacted]" in text
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_payload_in_a_pod_is_redacted_by_live_json(buried, capsys):
    directory, _ = buried
    _, out, _ = await run_letters(capsys, "list", "--assignment", directory, "-o", "json")
    last = json.loads(out)[-1]["id"]
    code, full, _ = await run_letters(capsys, "show", last, "--payload", "--assignment", directory, "-o", "json")
    assert code == 0
    assert SECRET not in full
    assert json.loads(json.loads(full)["payload"]) == {"n": 3, "card": {"number": "[redacted]"}}
    assert ["Authorization", "[redacted]"] in json.loads(full)["headers"]
    (directory / "live.json").unlink()
    code, full, err = await run_letters(capsys, "show", last, "--payload", "--assignment", directory, "-o", "json")
    assert (code, full) == (1, "")
    assert "there is no assignment here" in err


async def test_the_origin_of_a_redis_letter_is_an_entry_id(redis, tmp_path, capsys):
    broker_spec = {"redis": {"url": redis}}
    scene = Scene(None, f"orders-{uuid.uuid4().hex[:8]}", broker_spec)
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        await scene.bury(letter(Place.from_entry_id("", "1794990614608-5").offset, scene.name))
    write_files(tmp_path, scene, broker_spec)
    _, out, _ = await run_letters(capsys, "list", "--assignment", tmp_path, "-o", "json")
    code, out, _ = await run_letters(capsys, "show", json.loads(out)[0]["id"], "--assignment", tmp_path)
    assert code == 0
    assert yaml.safe_load(out)["origin"] == {"topic": scene.name, "partition": 0, "offset": "1794990614608-5"}


async def test_errors_name_the_option_and_the_remedy(buried, capsys):
    directory, scene = buried
    named = ("--connection", directory / "connection.yaml", "--dead", scene.boxes.dead)
    for name in ("0-999999", "7-0", "nonsense", "1-"):
        code, _, err = await run_letters(capsys, "show", name, *named)
        remedy = "list the open letters with `letters list`"
        assert (code, err) == (1, f"{scene.boxes.dead} has no open letter {name}; {remedy}\n")
    code, _, err = await run_letters(capsys, "list", "--where", "attempts", *named)
    assert code == 1
    assert err.startswith("--where: ")
    assert "bool" in err
    with pytest.raises(SystemExit):
        letters.main(["list", "--limit", "0", *map(str, named)])
    assert "argument --limit: must be 1 or more" in capsys.readouterr().err
    code, _, err = await run_letters(capsys, "list", "--assignment", directory / "nowhere")
    assert code == 1
    assert "--connection" in err
