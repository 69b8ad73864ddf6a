"""`letters list|show -n namespace queue`: a real API server, with the chart's rights and no more."""

import asyncio
import json
import os
import sys

import pytest

from deadletter.brokers.connect import open_broker
from deadletter.core.letters import Category, Failure
from tests.bed import places
from tests.brokers.connections import fresh_name
from tests.brokers.secured_kafka import PASSWORD, open_secured_kafka
from tests.cli.test_letters import ANYWHERE, SECRET, queue_spec
from tests.controller.operator_process import KubeNamespace, create_kubeconfig
from tests.workers.replay_scene import Scene, letter

TIMEOUT_S = 120
REMEDY = "create it, or check the name and -n"


@pytest.fixture
def place(crds, namespace, tmp_path, monkeypatch):
    """The namespace as the operator sees it."""
    monkeypatch.setenv("KUBECONFIG", str(create_kubeconfig(crds, namespace, tmp_path)))
    monkeypatch.setenv("DLQ_ALLOW_ADDRESSES", ",".join(ANYWHERE))
    return KubeNamespace(crds, namespace)


async def run_letters(*arguments):
    """Run the command in a process of its own: the API client reads KUBECONFIG once."""
    environment = os.environ | {"PYTHONPATH": str(places.REPOSITORY / "operator")}
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "deadletter", "letters", *arguments)
    child = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(child.communicate(), TIMEOUT_S)
    return child.returncode, out.decode(), err.decode()


@pytest.fixture
async def scene(place, kafka):
    scene = Scene(None, fresh_name("named"), {"kafka": {"bootstrapServers": [kafka]}})
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as broker:
        scene.broker = broker
        await scene.build()
        secret = letter(1, scene.name, Failure("Refused", "blocked", Category.Validation))
        secret.value = json.dumps({"n": 1, "card": {"number": SECRET}}).encode()
        await scene.bury(letter(0, scene.name), secret, letter(2, scene.name))
        await scene.replay(select={"where": "payload.n == 2"})
    place.apply("BrokerConnection", "broker", scene.connection)
    place.apply("DeadLetterQueue", "orders", queue_spec(scene))
    return scene


async def test_letters_are_listed_and_shown_by_the_name_of_the_queue(scene, place):
    code, out, err = await run_letters("list", "-n", place.namespace, "orders", "-o", "json")
    assert code == 0, err
    rows = json.loads(out)
    assert [row["error"]["type"] for row in rows] == ["Timeout", "Refused"]
    code, out, err = await run_letters("show", "-n", place.namespace, "orders", rows[1]["id"], "--payload")
    assert code == 0, err
    assert scene.boxes.dead in out
    assert "[redacted]" in out
    assert SECRET not in out


async def test_the_secrets_of_the_connection_are_read_from_the_api_server(place, bed):
    """Kafka requires a login over TLS, so nothing can be read without the Secrets."""
    secured = open_secured_kafka(bed)
    scene = Scene(None, fresh_name("named"), {"kafka": {"bootstrapServers": [secured.plain]}})
    async with open_broker(scene.assignment().broker, lambda *_: b"", ANYWHERE) as scene.broker:
        await scene.build()
        await scene.bury(letter(0, scene.name))
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
    spec = {"bootstrapServers": [secured.login], "tls": tls, "sasl": sasl}
    place.apply("BrokerConnection", "broker", {"kafka": spec})
    place.apply("DeadLetterQueue", "orders", queue_spec(scene))
    place.kubectl("create", "secret", "generic", "ca", f"--from-file=ca.crt={secured.files / 'ca.crt'}")
    arguments = ("list", "-n", place.namespace, "orders", "-o", "json")
    code, _, err = await run_letters(*arguments)
    assert (code, err) == (1, f"Secret login does not exist in namespace {place.namespace}; {REMEDY}\n")
    login = ("--from-literal=username=admin", f"--from-literal=password={PASSWORD}")
    place.kubectl("create", "secret", "generic", "login", *login)
    code, out, err = await run_letters(*arguments)
    assert code == 0, err
    assert [row["id"] for row in json.loads(out)] == ["0-0"]
    assert PASSWORD not in out + err


async def test_errors_name_what_is_missing_or_forbidden(place, monkeypatch, tmp_path):
    code, _, err = await run_letters("list", "-n", place.namespace, "nowhere")
    assert (code, err) == (1, f"DeadLetterQueue nowhere does not exist in namespace {place.namespace}; {REMEDY}\n")
    code, _, err = await run_letters("list", "-n", "kube-system", "orders")
    assert code == 1
    assert "403" in err
    code, _, err = await run_letters("list", "orders")
    assert (code, err) == (1, "QUEUE orders needs its namespace; add -n NAMESPACE\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    code, _, err = await run_letters("list", "-n", place.namespace, "orders")
    assert code == 1
    assert "KUBECONFIG" in err
