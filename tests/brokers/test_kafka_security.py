"""TLS, client certificates, SASL, ACLs and rotated Secrets; errors never contain a password."""

import asyncio
import contextlib
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import BoxMonitor, Broker, PartitionWriter
from deadletter.brokers.errors import AuthenticationFailed, BoxRefused, CertificateRefused, NotAuthorised
from deadletter.brokers.kafka.add_replicas import reassign_partitions
from deadletter.brokers.types import CommitBatch, StoredMessage
from deadletter.core.box_types import BoxSpec, BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.replay_progress import SettledAs
from deadletter.net.secrets import mounted_secrets
from deadletter.wall_clock import now_ms
from tests.bed import beds
from tests.brokers.connections import LOOPBACK, fresh_name
from tests.brokers.helpers import (
    TIMEOUT_S,
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    settle_all,
    values,
)
from tests.brokers.secured_kafka import (
    ALL_OPERATIONS,
    ALLOW,
    DENY,
    PASSWORD,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    SecuredKafka,
    alter_configs,
    grant_acl,
    open_secured_kafka,
)
from tests.certificate_authority import PAST, CertificateAuthority

pytestmark = pytest.mark.server


@pytest.fixture(scope="session")
def secured(bed: beds.Bed) -> SecuredKafka:
    return open_secured_kafka(bed)


@pytest.fixture
def secrets(secured: SecuredKafka, tmp_path: Path) -> Path:
    """A directory of Secrets as they are mounted into a pod."""
    write(tmp_path / "ca" / "ca.crt", (secured.files / "ca.crt").read_bytes())
    for key in ("tls.crt", "tls.key"):
        write(tmp_path / "mine" / key, (secured.files / "courier" / key).read_bytes())
    login(tmp_path, "admin", PASSWORD)
    return tmp_path


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def login(secrets: Path, user: str, password: str) -> None:
    write(secrets / "login" / "username", user.encode())
    write(secrets / "login" / "password", f"{password}\n".encode())


def connect(secured: SecuredKafka, secrets: Path, mechanism: str) -> AbstractAsyncContextManager[Broker]:
    spec = {
        "bootstrapServers": [secured.login],
        "tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}},
        "sasl": {"mechanism": mechanism, "secretRef": {"name": "login"}},
    }
    return open_broker(BrokerConnectionSpec.model_validate({"kafka": spec}), mounted_secrets(secrets), LOOPBACK)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_each_mechanism_authenticates(secured: SecuredKafka, secrets: Path, mechanism: str) -> None:
    name = fresh_name("secured")
    async with connect(secured, secrets, mechanism) as broker:
        await broker.ensure(BoxSpec(name, 1))
        await publish_all(broker, name, numbered_messages(2))
        assert len(await read_all(broker, name)) == 2


async def test_a_client_certificate_authenticates(secured: SecuredKafka, secrets: Path) -> None:
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientSecretRef": {"name": "mine"}}
    spec = {"kafka": {"bootstrapServers": [secured.cert], "tls": tls}}
    async with open_broker(BrokerConnectionSpec.model_validate(spec), mounted_secrets(secrets), LOOPBACK) as broker:
        assert (await broker.server_info()).brokers == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_not_part_of_the_error(
    secured: SecuredKafka, secrets: Path, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    login(secrets, "admin", "wrong-canary")
    async with connect(secured, secrets, mechanism) as broker:
        with pytest.raises(AuthenticationFailed) as raised:
            await broker.server_info()
    assert "wrong-canary" not in caplog.text + str(raised.value) + repr(raised.value.__cause__)


async def test_a_corrected_password_is_used_for_the_next_connection(secured: SecuredKafka, secrets: Path) -> None:
    login(secrets, "admin", "old")
    async with connect(secured, secrets, "PLAIN") as broker:
        with pytest.raises(AuthenticationFailed):
            await broker.server_info()
        login(secrets, "admin", PASSWORD)
        assert (await broker.server_info()).brokers == 1


async def test_a_missing_secret_is_named(secured: SecuredKafka, secrets: Path) -> None:
    (secrets / "login" / "password").unlink()
    async with connect(secured, secrets, "PLAIN") as broker:
        with pytest.raises(AuthenticationFailed, match="login has no key password"):
            await broker.server_info()


async def test_an_unknown_certificate_authority_is_refused(secured: SecuredKafka, secrets: Path) -> None:
    spec = {
        "bootstrapServers": [secured.login],
        "tls": {},
        "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "login"}},
    }
    connection = BrokerConnectionSpec.model_validate({"kafka": spec})
    async with open_broker(connection, mounted_secrets(secrets), LOOPBACK) as broker:
        with pytest.raises(CertificateRefused, match="caSecretRef"):
            await broker.server_info()


@pytest.mark.parametrize(("validity", "message"), [
    (PAST, "our certificate.*clientSecretRef has expired"),
    (None, "certificate.*clientSecretRef"),
])  # fmt: skip
async def test_a_refused_client_certificate_names_the_field_to_fix(
    secured: SecuredKafka, secrets: Path, validity: tuple[float, float] | None, message: str
) -> None:
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    if validity is not None:
        CertificateAuthority(secured.files).sign(fresh_name("mine"), validity).rename(secrets / "old")
        tls["clientSecretRef"] = {"name": "old"}
    spec = {"kafka": {"bootstrapServers": [secured.cert], "tls": tls}}
    async with open_broker(BrokerConnectionSpec.model_validate(spec), mounted_secrets(secrets), LOOPBACK) as broker:
        with pytest.raises(CertificateRefused, match=message):
            await broker.server_info()


async def test_a_rotated_password_reaches_running_consumers_and_the_shared_producer(
    secured: SecuredKafka, secrets: Path
) -> None:
    """The old password is no longer valid and every connection is lost; all continue with the new one."""
    login(secrets, "rotated", PASSWORD)
    async with connect(secured, secrets, "SCRAM-SHA-256") as broker, contextlib.AsyncExitStack() as stack:
        boxes = await make_boxes(broker, fresh_name("rotated"))
        subscription = await stack.enter_async_context(broker.subscribe(boxes.subscription()))
        monitor = broker.monitor()
        stack.push_async_callback(monitor.close)
        await publish_all(broker, boxes.source, numbered_messages(1))
        await settle_all(subscription, await claim_some(subscription, 1))
        await publish_all(broker, boxes.dead, numbered_messages(1))
        await until_depth(monitor, boxes, 1)
        await subscription.report_status(WorkerStatus("pod-0", at=1))
        changed = ["--entity-type", "users", "--entity-name", "rotated", "--add-config", "SCRAM-SHA-256=[password=new]"]
        await asyncio.to_thread(alter_configs, secured, *changed)
        clients = [one._client for one in (subscription._consumer, monitor._consumer)]  # type: ignore[attr-defined]
        kafka = broker._kafka  # type: ignore[attr-defined]
        for client in (*clients, kafka._producer.client, await kafka.shared_client()):
            for connection in list(client._conns.values()):
                connection.close()
        with pytest.raises(AuthenticationFailed):
            await broker.server_info()
        login(secrets, "rotated", "new")
        await subscription.report_status(WorkerStatus("pod-0", at=2))
        await publish_all(broker, boxes.source, numbered_messages(1, start=1))
        assert [one.message.value for one in await claim_some(subscription, 1)] == [b"v1"]
        await publish_all(broker, boxes.dead, numbered_messages(1))
        await until_depth(monitor, boxes, 2)


async def until_depth(monitor: BoxMonitor, boxes: Boxes, depth: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = (await monitor.sweep([boxes.monitored], now_ms()))[boxes.dead]
        if isinstance(found, BoxStats) and found.depth == depth:
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


async def test_a_user_without_rights_is_not_authorised(secured: SecuredKafka, secrets: Path) -> None:
    name = fresh_name("private")
    async with connect(secured, secrets, "PLAIN") as broker:
        await broker.ensure(BoxSpec(name, 1))
    login(secrets, "guest", PASSWORD)
    async with connect(secured, secrets, "PLAIN") as guest:
        with pytest.raises(NotAuthorised):
            await guest.window(name)
        with pytest.raises(NotAuthorised):
            await guest.ensure(BoxSpec(fresh_name("mine"), 1))


async def test_offsets_that_a_user_may_not_read_do_not_count_as_lost(secured: SecuredKafka, secrets: Path) -> None:
    name = fresh_name("hidden")
    await grant_acl(secured, ALLOW, ALL_OPERATIONS, (TOPIC, name))
    login(secrets, "guest", PASSWORD)
    async with connect(secured, secrets, "PLAIN") as guest:
        boxes = await until_allowed(guest, name)
        await publish_all(guest, boxes.source, numbered_messages(1))
        with pytest.raises(NotAuthorised):
            await guest.is_group_lost(boxes.source, boxes.group)


async def test_a_user_without_the_right_to_alter_the_cluster_cannot_add_replicas(
    secured: SecuredKafka, secrets: Path
) -> None:
    name = fresh_name("single")
    await grant_acl(secured, ALLOW, ALL_OPERATIONS, (TOPIC, name))
    login(secrets, "guest", PASSWORD)
    async with connect(secured, secrets, "PLAIN") as guest:
        boxes = await until_allowed(guest, name)
        with pytest.raises(NotAuthorised):
            await reassign_partitions(guest._kafka, boxes.dead, {0: [1]})  # type: ignore[attr-defined]
    login(secrets, "admin", PASSWORD)
    async with connect(secured, secrets, "PLAIN") as admin:
        await reassign_partitions(admin._kafka, boxes.dead, {0: [1]})  # type: ignore[attr-defined]
        with pytest.raises(BoxRefused, match="InvalidReplicationAssignment"):
            await reassign_partitions(admin._kafka, boxes.dead, {0: [1, 99]})  # type: ignore[attr-defined]


async def test_a_right_revoked_during_a_replay_settles_nothing_more(secured: SecuredKafka, secrets: Path) -> None:
    name = fresh_name("rights")
    await grant_acl(secured, ALLOW, ALL_OPERATIONS, (TOPIC, name), (TRANSACTIONAL_ID, f"dlq.{name}"))
    login(secrets, "guest", PASSWORD)
    async with connect(secured, secrets, "PLAIN") as guest:
        boxes = await until_allowed(guest, name)
        await publish_all(guest, boxes.dead, numbered_messages(300))
        letters = await read_all(guest, boxes.dead)
        async with guest.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            await replay_one(writer, boxes, letters[0])
            await grant_acl(secured, DENY, WRITE, (TOPIC, boxes.target))
            replayed = await replay_until_refused(writer, boxes, letters)
        async with guest.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
            still_open = [one for one in letters if again.is_open(one.place.offset)]
            assert again.progress is not None
            assert again.progress.next == letters[replayed - 1].place.offset + 1
        assert replayed == len(letters) - len(still_open)
        assert await values(guest, boxes.target) == [one.message.value for one in letters[:replayed]]


async def replay_one(writer: PartitionWriter, boxes: Boxes, one: StoredMessage) -> None:
    settled = {SettledAs.Replayed: [one.place.offset]}
    await writer.commit(CommitBatch(progress_of([one]), publications_to(boxes.target, [one]), settled))


async def replay_until_refused(writer: PartitionWriter, boxes: Boxes, letters: list[StoredMessage]) -> int:
    """Return how many were replayed in all; the broker applies a revoked right after a moment."""
    for replayed, one in enumerate(letters[1:], 1):
        try:
            await replay_one(writer, boxes, one)
        except NotAuthorised:
            return replayed
        await asyncio.sleep(0.1)
    raise AssertionError("nothing was refused")


async def until_allowed(guest: Broker, name: str) -> Boxes:
    """Create the boxes as soon as the broker has applied the granted right."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return await make_boxes(guest, name)
        except NotAuthorised:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
