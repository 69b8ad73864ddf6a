"""Expired certificates are reported with a remedy, do not crash the operator, and are used again after renewal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis as driver
import yaml

from tests.bed import beds, ports
from tests.brokers.redis_servers import own_redis
from tests.brokers.secured_kafka import SecuredKafka, alter_configs, open_secured_kafka
from tests.certificate_authority import PAST, CertificateAuthority
from tests.controller.operator_process import KubeNamespace, OperatorProcess, wait_until
from tests.controller.test_credentials import secret
from tests.controller.webhook_config import HOST, webhook_configuration

TLS = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
EXPIRED = "the server's certificate, or its authority's, has expired: renew it"


def queue(kube: KubeNamespace, dead: str) -> None:
    kube.apply("DeadLetterQueue", "orders", {"brokerRef": {"name": "broker"}, "dead": {"name": dead}})


def refused(kube: KubeNamespace) -> None:
    """Connection and queue say the same, and that it may heal."""
    for kind, name in (("bkc", "broker"), ("dlq", "orders")):
        found = kube.wait_for_condition(kind, name, "Ready", "False", "CertificateRefused")
        assert EXPIRED in found["message"]
        assert kube.condition(kind, name, "Reconciling")["status"] == "True"


def healed(kube: KubeNamespace, operator: OperatorProcess) -> None:
    for kind, name in (("bkc", "broker"), ("dlq", "orders")):
        kube.wait_for_condition(kind, name, "Ready", "True")
    assert operator.process is not None
    assert operator.process.poll() is None


def test_expired_certificate_of_redis(kube: KubeNamespace, operator: OperatorProcess, tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    old, new = authority.sign("old", PAST), authority.sign("new")
    files = {"cert": old / "tls.crt", "key": old / "tls.key", "ca-cert": authority.certificate}
    options = [str(word) for kind, file in files.items() for word in (f"--tls-{kind}-file", file)]
    with own_redis(tmp_path / "redis", *options, "--tls-auth-clients", "no", plain=False) as port:
        secret(kube, "ca", f"--from-file=ca.crt={authority.certificate}")
        kube.apply("BrokerConnection", "broker", {"redis": {"url": f"rediss://{HOST}:{port}/0", "tls": TLS}})
        queue(kube, "dead-letters")
        refused(kube)
        with driver.Redis(HOST, port, ssl=True, ssl_cert_reqs="none") as client:
            client.config_set("tls-cert-file", str(new / "tls.crt"), "tls-key-file", str(new / "tls.key"))
        healed(kube, operator)


def certify_kafka(secured: SecuredKafka, name: str) -> None:
    """The listener shows this certificate from now on."""
    location = f"listener.name.old.ssl.keystore.location={secured.files / name}.pem"
    alter_configs(secured, "--entity-type", "brokers", "--entity-name", "1", "--add-config", location)


def test_expired_certificate_of_kafka(kube: KubeNamespace, operator: OperatorProcess, bed: beds.Bed) -> None:
    secured = open_secured_kafka(bed)
    certify_kafka(secured, "expired")
    secret(kube, "ca", f"--from-file=ca.crt={secured.files / 'ca.crt'}")
    usual = {"partitions": 1, "replicationFactor": 1}
    kube.apply(
        "BrokerConnection", "broker", {"kafka": {"bootstrapServers": [secured.old], "tls": TLS, "defaults": usual}}
    )
    queue(kube, f"dead-{kube.namespace}")
    refused(kube)
    certify_kafka(secured, "server")
    healed(kube, operator)


def test_expired_certificate_of_the_webhook(
    kube: KubeNamespace, start: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    """Writes are accepted and the reconciler reports problems; a renewed certificate is used without a restart."""
    authority = CertificateAuthority.create(tmp_path / "ca")
    served, port, name = authority.sign("webhook", PAST), str(ports.free(HOST)[0]), f"dlq-{kube.namespace}"
    operator = start(DLQ_WEBHOOK_CERTIFICATES=str(served), DLQ_WEBHOOK_PORT=port).wait_until_ready()
    wait_until("webhook", lambda: ports.answers(HOST, int(port)))
    whole = webhook_configuration(name, kube.namespace, port, authority.certificate)
    kube.server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(whole))
    nonsense: dict[str, Any] = {"rules": [{"name": "x", "match": "1 + 1", "action": "Bury"}]}
    try:
        kube.apply("RetryPolicy", "bad", nonsense)
        kube.wait_for_condition("rtp", "bad", "Stalled", "True", "InvalidSpec")
        authority.sign("webhook")
        wait_until("refused again", lambda: is_refused(kube, nonsense))
        assert operator.process is not None
        assert operator.process.poll() is None
    finally:
        kube.server.kubectl("delete", "validatingwebhookconfiguration", name)


def is_refused(kube: KubeNamespace, spec: dict[str, Any]) -> bool:
    kube.kubectl("delete", "rtp", "worse", "--ignore-not-found")
    try:
        kube.apply("RetryPolicy", "worse", spec)
    except Exception as error:  # noqa: BLE001 - the kind of error does not matter, its text does
        return "spec.rules[0].match" in str(error)
    return False
