"""An adopted box that is only observed: a Kafka user with no rights but to read and describe it."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import NotAuthorised
from deadletter.brokers.types import MonitoredBox
from deadletter.cli import letters
from deadletter.core.box_types import BoxStats
from deadletter.net.secrets import mounted_secrets
from deadletter.wall_clock import now_ms
from deadletter.workers import backoff, exit_status
from tests.brokers.connections import fresh_name
from tests.brokers.secured_kafka import PASSWORD, SecuredKafka, open_secured_kafka
from tests.workers.replay_pods import LOCAL_NETWORKS, TIMEOUT_S, ReplayPod
from tests.workers.replay_scene import Scene, letter

pytestmark = pytest.mark.server

TOPIC, LITERAL, ALLOW = 2, 3, 3
READ, DESCRIBE, DESCRIBE_CONFIGS = 3, 8, 10


@pytest.fixture(scope="session")
def secured(bed) -> SecuredKafka:
    return open_secured_kafka(bed)


async def allow(secured: SecuredKafka, topic: str, *rights: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=secured.plain)
    await admin.start()
    try:
        for right in rights:
            request = CreateAclsRequest(TOPIC, topic, LITERAL, "User:guest", "*", right, ALLOW)
            response = await admin._send_request(request)
            assert [code for code, _ in response.creation_responses] == [0]
    finally:
        await admin.close()


def connection(secured: SecuredKafka) -> dict:
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
    return {"kafka": {"bootstrapServers": [secured.login], "tls": tls, "sasl": sasl}}


def write_secrets(secured: SecuredKafka, folder) -> None:
    files = {"ca/ca.crt": (secured.files / "ca.crt").read_text(), "login/username": "guest", "login/password": PASSWORD}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


async def wait_until_readable(guest: Broker, box: str) -> None:
    """Wait until the new rights have reached the broker."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await guest.window(box)
            except NotAuthorised:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.fixture
async def scene(secured, tmp_path):
    """A scene whose letters an application wrote; `scene.broker` is the connection of the restricted user."""
    scene = Scene(None, fresh_name("observed"), {"kafka": {"bootstrapServers": [secured.plain]}})
    async with AsyncExitStack() as stack:
        owner = open_broker(scene.assignment().broker, lambda *_: b"", LOCAL_NETWORKS)
        scene.broker = await stack.enter_async_context(owner)
        await scene.build()
        await scene.bury(*(letter(number, scene.name) for number in range(12)))
        await allow(secured, scene.boxes.dead, READ, DESCRIBE)
        write_secrets(secured, tmp_path)
        scene.connection, scene.owner = connection(secured), scene.broker
        guest = open_broker(scene.assignment().broker, mounted_secrets(tmp_path), LOCAL_NETWORKS)
        scene.broker = await stack.enter_async_context(guest)
        await wait_until_readable(scene.broker, scene.boxes.dead)
        yield scene


async def sent_offsets(scene: Scene) -> list[int]:
    spans = await scene.owner.window(scene.name)
    return [taken.place.offset async for batch in scene.owner.read(scene.name, spans) for taken in batch]


async def test_depth_age_and_groups_need_no_right_to_write(scene):
    registers = scene.broker.monitor()
    watched = MonitoredBox(scene.boxes.dead, scene.boxes.ledger)
    async with asyncio.timeout(TIMEOUT_S):
        reading = None
        while not isinstance(reading, BoxStats) or not reading.caught_up:
            reading = (await registers.sweep([watched], now_ms()))[scene.boxes.dead]
            assert isinstance(reading, BoxStats), reading
    await registers.close()
    assert (reading.depth, reading.oldest) == (12, 1_700_000_000_000)
    assert [(group.error_type, group.letters) for group in reading.groups] == [("Timeout", 12)]


async def test_a_preview_reports_in_its_termination_message_and_writes_nothing(scene, tmp_path, monkeypatch):
    monkeypatch.setenv("DLQ_SECRETS_DIR", str(tmp_path))
    before = await scene.owner.window(scene.boxes.dead)
    pod = ReplayPod(tmp_path, scene, observe=True, mode="DryRun", select={"where": "payload.n % 3 == 0"})
    assert await pod.run_to_end() == exit_status.FINISHED, (tmp_path / "log").read_text()[-2_000:]
    message = pod.termination_message
    assert (message["reason"], message["scanned"], message["matched"], message["replayed"]) == (
        "DryRunFinished",
        12,
        4,
        0,
    )
    assert (message["targets"], sum(message["groups"].values())) == ({scene.name: 4}, 4)
    assert message["samples"] == [f"0-{n}" for n in (0, 3, 6, 9)]
    assert await scene.owner.window(scene.boxes.dead) == before
    assert await sent_offsets(scene) == []
    assert set(await scene.owner.describe([scene.boxes.dead, scene.boxes.ledger])) == {scene.boxes.dead}


async def test_a_replay_of_such_a_user_changes_nothing_and_names_the_reason(scene, monkeypatch):
    monkeypatch.setattr(backoff, "INITIAL_DELAY_S", 0.01)
    result = await scene.replay()
    assert (result.code, result.reason) == (exit_status.TRY_AGAIN, "NotAuthorised")
    assert await sent_offsets(scene) == []


async def test_retention_is_known_if_the_user_may_read_configs(scene, secured):
    dead = scene.boxes.dead
    assert (await scene.broker.describe([dead]))[dead].retention_ms is None
    await allow(secured, dead, DESCRIBE_CONFIGS)
    async with asyncio.timeout(TIMEOUT_S):
        while (await scene.broker.describe([dead]))[dead].retention_ms != -1:
            await asyncio.sleep(0.1)


async def test_its_letters_are_listed(scene, tmp_path, capsys):
    queue = {
        "brokerRef": {"name": "broker"},
        "dead": {"name": scene.boxes.dead, "adopt": True},
        "redrive": {"strategy": "Disabled"},
    }
    for kind, spec in (("BrokerConnection", scene.connection), ("DeadLetterQueue", queue)):
        (tmp_path / kind).write_text(json.dumps({"kind": kind, "spec": spec}))
    files = ("--connection", tmp_path / "BrokerConnection", "--queue", tmp_path / "DeadLetterQueue")
    words = ("list", *files, "--secrets", tmp_path, "-o", "json")
    code = await asyncio.to_thread(letters.main, [str(message) for message in words])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert [row["id"] for row in json.loads(shown.out)] == [f"0-{n}" for n in range(12)]
