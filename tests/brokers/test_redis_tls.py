"""Redis over TLS with a client certificate."""

import subprocess
from pathlib import Path

import pytest

from deadletter.api.brokerconnections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerUnreachable
from tests.brokers.opening import LOOPBACK
from tests.brokers.servers import HERE, own_redis


def certificates(directory: Path) -> dict[str, bytes]:
    """An authority and a pair it signed, for server and client alike."""
    run = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=ca"]
    subprocess.run(
        [*run, "-keyout", directory / "ca.key", "-out", directory / "ca.crt"], check=True, capture_output=True
    )
    pair = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=redis"]
    pair += ["-CA", str(directory / "ca.crt"), "-CAkey", str(directory / "ca.key")]
    pair += ["-addext", f"subjectAltName=IP:{HERE}", "-addext", "basicConstraints=critical,CA:FALSE"]
    pair += ["-keyout", str(directory / "tls.key"), "-out", str(directory / "tls.crt")]
    subprocess.run(pair, check=True, capture_output=True)
    return {name: (directory / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")}


async def test_redis_over_tls(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    settings = ["--tls-cert-file", "tls.crt", "--tls-key-file", "tls.key", "--tls-ca-cert-file", "ca.crt"]
    with own_redis(tmp_path, *settings, plain=False) as port:
        tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientSecretRef": {"name": "cert"}}
        redis = {"url": f"rediss://{HERE}:{port}/0", "tls": tls}
        spec = BrokerConnectionSpec.model_validate({"redis": redis})
        async with open_broker(spec, lambda _, key: files[key], LOOPBACK) as broker:
            assert (await broker.server()).kind == "Redis"
        distrusting = BrokerConnectionSpec.model_validate({"redis": {"url": redis["url"]}})
        async with open_broker(distrusting, lambda _, key: files[key], LOOPBACK) as broker:
            with pytest.raises(BrokerUnreachable):
                await broker.server()
