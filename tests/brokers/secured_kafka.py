"""A Kafka with SASL over TLS, client certificates and ACLs.

It does not verify which partitions belong to a transaction, so that tests can lose transaction markers.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from deadletter.brokers.connect import open_broker
from tests.bed import beds, kafka, processes, tools
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets
from tests.certificate_authority import PAST, PRESENT, CertificateAuthority

# Numbers of the protocol: resource types, pattern type, operations, permissions.
TOPIC, GROUP, TRANSACTIONAL_ID, PREFIXED = 2, 3, 5, 4
ALL_OPERATIONS, WRITE, DENY, ALLOW = 2, 4, 2, 3
PASSWORD = "canary-password-2f6c"
PEM = """\
ssl.keystore.type=PEM
ssl.keystore.location={here}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={here}/ca.crt
"""
LOGIN = "org.apache.kafka.common.security"
EXTRA = """\
listeners=PLAIN://{address}:{port},CONTROLLER://{address}:{controller},{tls}
advertised.listeners=PLAIN://{address}:{port},{tls}
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL,CERT:SSL,OLD:SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.login.plain.sasl.jaas.config={plain}.PlainLoginModule required \\
  user_admin="{password}" user_guest="{password}";
listener.name.login.scram-sha-256.sasl.jaas.config={scram}.ScramLoginModule required;
listener.name.login.scram-sha-512.sasl.jaas.config={scram}.ScramLoginModule required;
listener.name.cert.ssl.client.auth=required
listener.name.old.ssl.keystore.type=PEM
listener.name.old.ssl.keystore.location={directory}/expired.pem
transaction.partition.verification.enable=false
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin;User:rotated;User:CN=courier
"""


@dataclass(frozen=True)
class SecuredKafka:
    """The addresses of its listeners, and the directory of certificates."""

    plain: str
    login: str
    cert: str
    old: str  # its certificate has expired
    files: Path


def open_secured_kafka(bed: beds.Bed) -> SecuredKafka:
    """Return the secured Kafka of the test bed; start it at its first use."""
    part = bed.ensure_part(beds.Part("secured-kafka", 5, _start))
    plain, _, login, cert, old = (f"{part['address']}:{port}" for port in part["ports"])
    return SecuredKafka(plain, login, cert, old, bed.directory / "secured-kafka")


async def grant_acl(secured: SecuredKafka, permission: int, operation: int, *resources: tuple[int, str]) -> None:
    """Allow or deny the guest an operation on resources whose names start with a prefix."""
    for kind, prefix in resources:
        request = CreateAclsRequest(kind, prefix, PREFIXED, "User:guest", "*", operation, permission)
        assert [code for code, *_ in (await _send(secured, request)).creation_responses] == [0]


async def revoke_acl(secured: SecuredKafka, permission: int, operation: int, *resources: tuple[int, str]) -> None:
    """Delete ACLs that `grant_acl` created."""
    for kind, prefix in resources:
        request = DeleteAclsRequest(kind, prefix, PREFIXED, "User:guest", "*", operation, permission)
        ((code, _, matching),) = (await _send(secured, request)).filter_responses
        assert (code, len(matching)) == (0, 1)


async def _send(secured: SecuredKafka, request: Any) -> Any:
    async with open_broker(kafka_at(secured.plain), no_secrets, LOOPBACK) as broker:
        client = await broker._kafka.shared_client()  # type: ignore[attr-defined]
        return await client.send(client.get_random_node(), request)


def alter_configs(secured: SecuredKafka, *arguments: str) -> None:
    """Change configs of a broker or a user while it runs."""
    command = kafka.java("-XX:TieredStopAtLevel=1", "kafka.admin.ConfigCommand")
    tools.run([*command, "--bootstrap-server", secured.plain, "--alter", *arguments], timeout=120)


def _start(bed: Path, name: str, address: str, port: int, controller: int, login: int, cert: int, old: int) -> None:
    here = bed / name
    here.mkdir(parents=True)
    _write_certificates(here, address)
    values = {"address": address, "port": port, "controller": controller, "directory": here}
    properties = [line for line in kafka.PROPERTIES.format(**values).splitlines() if "listeners=" not in line]
    properties = [line for line in properties if not line.startswith("listener.security")] + [
        "controller.listener.names=CONTROLLER"
    ]
    modules = {"plain": f"{LOGIN}.plain", "scram": f"{LOGIN}.scram", "password": PASSWORD}
    listeners = {"LOGIN": login, "CERT": cert, "OLD": old}
    tls = ",".join(f"{listener}://{address}:{number}" for listener, number in listeners.items())
    extra = EXTRA.format(**values, tls=tls, **modules) + PEM.format(here=here)
    config = here / "server.properties"
    config.write_text("\n".join(dict.fromkeys(properties)) + "\n" + extra)
    users = [
        f"{kind}=[name={user},password={PASSWORD}]"
        for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for user in ("admin", "rotated")
    ]
    scram = [argument for user in users for argument in ("--add-scram", user)]
    arguments = ("format", "--standalone", "-t", "c2VjdXJlZC1rYWZrYS0wMA", "-c", config, *scram)
    tools.run(kafka.java("-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", *arguments), cwd=here)
    command = kafka.java("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "kafka.Kafka", config)
    made = processes.start(name, command, bed)
    list_topics = [tools.path("kcat"), "-b", f"{address}:{port}", "-L", "-m", "2"]
    processes.wait_until("the secured Kafka", lambda: _succeeds(list_topics), 180, made)


def _write_certificates(here: Path, address: str) -> None:
    authority = CertificateAuthority.create(here)
    # Kafka accepts a new certificate while it runs only if its subject is that of the old one.
    for name, subject, validity in (
        ("server", "kafka", PRESENT),
        ("expired", "kafka", PAST),
        ("courier", "courier", PRESENT),
    ):
        folder = authority.sign(name, validity, address, subject)
        (here / f"{name}.pem").write_text((folder / "tls.key").read_text() + (folder / "tls.crt").read_text())


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
