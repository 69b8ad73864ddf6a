"""Wrong, rotated and deleted credentials; no secret or letter content in logs, metrics, statuses or Events."""

import asyncio
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import redis as driver
from aiokafka import AIOKafkaProducer

from tests.bed import beds, tools
from tests.brokers.redis_servers import own_redis
from tests.brokers.secured_kafka import PASSWORD, open_secured_kafka
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until

CANARY = "canary-5d1f"


def secret(kube: KubeNamespace, name: str, *words: str) -> None:
    made = kube.kubectl("create", "secret", "generic", name, *words, "--dry-run=client", "-o", "yaml")
    kube.kubectl("apply", "-f", "-", stdin=made)


def login(kube: KubeNamespace, password: str) -> None:
    secret(kube, "login", "--from-literal=username=admin", f"--from-literal=password={password}")


def everything_written(kube: KubeNamespace, operator: OperatorProcess) -> str:
    """Return everything that the operator writes: logs, metrics and objects."""
    kinds = "bkc,rtp,dlq,rply,events,configmaps,deployments,jobs"
    return operator.log.read_text() + operator.metrics() + kube.kubectl("get", kinds, "-o", "yaml")


def test_changed_credentials_are_used(kube: KubeNamespace, operator: OperatorProcess, bed: beds.Bed) -> None:
    secured = open_secured_kafka(bed)
    secret(kube, "ca", f"--from-file=ca.crt={secured.files / 'ca.crt'}")
    login(kube, f"wrong-{CANARY}")
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    usual = {"partitions": 1, "replicationFactor": 1}
    spec = {"bootstrapServers": [secured.login], "tls": tls, "sasl": sasl, "defaults": usual}
    kube.apply("BrokerConnection", "broker", {"kafka": spec})
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "dead": {"name": dead}})
    kube.wait_for_condition("bkc", "broker", "Ready", "False", "AuthenticationFailed")
    kube.wait_for_condition("dlq", "orders", "Ready", "False", "AuthenticationFailed")
    login(kube, PASSWORD)
    kube.wait_for_condition("bkc", "broker", "Ready", "True")
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    kube.kubectl("delete", "secret", "login")
    kube.wait_for_condition("dlq", "orders", "ReferencesResolved", "False", "SecretNotFound")
    login(kube, PASSWORD)
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    found = everything_written(kube, operator)
    assert CANARY not in found
    assert PASSWORD not in found
    assert operator.process is not None
    assert operator.process.poll() is None


def test_an_untrusted_certificate_is_reported(kube: KubeNamespace, operator: OperatorProcess, tmp_path: Path) -> None:
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "tls.key", "-out", "tls.crt", "-days", "1"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    for folder in (tmp_path / "server", tmp_path / "other"):
        folder.mkdir()
        subprocess.run([tools.path("openssl"), *words, *name], cwd=folder, check=True, capture_output=True)
    served = [f"--tls-{kind}-file" for kind in ("cert", "key", "ca-cert")]
    files = [tmp_path / "server" / file for file in ("tls.crt", "tls.key", "tls.crt")]
    options = [str(word) for pair in zip(served, files, strict=True) for word in pair]
    with own_redis(tmp_path / "redis", *options, "--tls-auth-clients", "no", plain=False) as port:
        secret(kube, "ca", f"--from-file=ca.crt={tmp_path / 'other' / 'tls.crt'}")
        tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
        kube.apply("BrokerConnection", "broker", {"redis": {"url": f"rediss://127.0.0.1:{port}/0", "tls": tls}})
        found = kube.wait_for_condition("bkc", "broker", "Ready", "False")
        assert found["reason"] == "CertificateRefused"
        secret(kube, "ca", f"--from-file=ca.crt={tmp_path / 'server' / 'tls.crt'}")
        kube.wait_for_condition("bkc", "broker", "Ready", "True")


def letters(kafka: str, topic: str) -> None:
    """Send well-formed and malformed letters with the canary in every part."""
    error = f"IllegalStateException: {CANARY}".encode()
    spring = [("kafka_dlt-exception-message", error), ("kafka_dlt-original-topic", CANARY.encode())]
    spring += [("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"), (CANARY, CANARY.encode())]
    broken = [("dlq-envelope", CANARY.encode()), ("kafka_dlt-original-offset", CANARY.encode())]

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka)
        await producer.start()
        try:
            for headers in (spring, broken, []):
                await producer.send_and_wait(topic, CANARY.encode(), CANARY.encode(), headers=headers)
        finally:
            await producer.stop()

    asyncio.run(send())


@pytest.mark.parametrize("broker", ["kafka", "redis"])
def test_no_content_of_letters_or_secrets_is_written(
    kube: KubeNamespace, operator: OperatorProcess, request: pytest.FixtureRequest, broker: str
) -> None:
    address = request.getfixturevalue(broker)
    dead = f"dead-{uuid.uuid4().hex[:8]}"
    getattr(kube, broker)(address)
    spec: dict[str, Any] = {"brokerRef": {"name": "broker"}, "dead": {"name": dead, "readValues": True}}
    kube.apply("DeadLetterQueue", "orders", spec | {"alerts": {"depth": 1}})
    kube.wait_for_condition("dlq", "orders", "Ready", "True")
    if broker == "kafka":
        letters(address, dead)
    else:
        with driver.Redis.from_url(address) as client:
            for fields in (
                {"value": CANARY, "key": CANARY, CANARY: CANARY},
                {"error": f"Timeout: {CANARY}"},
                {"a": CANARY},
            ):
                client.xadd(dead, fields)
    secret(kube, "token", f"--from-literal=bearer={CANARY}")
    header = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "bearer"}}}
    http = {"url": "http://billing.example/orders", "headers": [header]}
    source = {"name": f"source-{uuid.uuid4().hex[:8]}", "group": "billing"}
    kube.apply(
        "DeadLetterQueue", "sent", {"brokerRef": {"name": "broker"}, "source": source, "delivery": {"http": http}}
    )
    wait_until("read", lambda: kube.get("dlq", "orders")["status"].get("depth") == 3)
    kube.wait_for_condition("dlq", "orders", "Degraded", "True", "DepthHigh")
    kube.wait_for_condition("dlq", "sent", "Ready", "False")
    kube.apply("Replay", "again", {"queueRef": {"name": "orders"}})
    wait_until("a job", lambda: kube.get("job", "again-replay"))
    found = everything_written(kube, operator)
    assert kube.get("dlq", "orders")["status"]["groups"]
    assert CANARY not in found
