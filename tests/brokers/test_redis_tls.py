"""Redis over TLS: client certificates, refused certificates, unreadable files."""

from pathlib import Path

import pytest

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import AddressForbidden, CertificateRefused
from deadletter.net.secrets import mounted_secrets
from tests.brokers.connections import LOOPBACK, no_secrets
from tests.brokers.redis_servers import HERE, own_redis
from tests.certificate_authority import FUTURE, PAST, PRESENT, CertificateAuthority

pytestmark = pytest.mark.server

CA = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
CLIENT = {"clientSecretRef": {"name": "mine"}}


async def server_kind(port: int, secrets: Path, **tls: object) -> str:
    spec = BrokerConnectionSpec.model_validate({"redis": {"url": f"rediss://{HERE}:{port}/0", "tls": tls}})
    async with open_broker(spec, mounted_secrets(secrets), LOOPBACK) as broker:
        return (await broker.server_info()).kind


def tls_settings(authority: CertificateAuthority, name: str) -> list[str]:
    files = {"cert": f"{name}/tls.crt", "key": f"{name}/tls.key", "ca-cert": "ca.crt"}
    return [part for kind, file in files.items() for part in (f"--tls-{kind}-file", str(authority.folder / file))]


async def test_redis_over_tls(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    for name in ("server", "mine"):
        authority.sign(name)
    (tmp_path / "ca" / "mine").rename(tmp_path / "mine")
    with own_redis(tmp_path, *tls_settings(authority, "server"), plain=False) as port:
        assert await server_kind(port, tmp_path, **CA, **CLIENT) == "Redis"
        with pytest.raises(CertificateRefused, match="caSecretRef"):
            await server_kind(port, tmp_path)


@pytest.mark.parametrize(("server", "client", "problem"), [
    (PAST, PRESENT, "the server's certificate.* has expired: renew it"),
    (FUTURE, PRESENT, "is not valid yet: check the clocks"),
    (PRESENT, PAST, "our certificate, it has expired: renew it in the Secret of clientSecretRef"),
])  # fmt: skip
async def test_a_refused_certificate_is_reported_with_its_remedy(
    tmp_path: Path, server: tuple[float, float], client: tuple[float, float], problem: str
) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.sign("server", server)
    authority.sign("mine", client).rename(tmp_path / "mine")
    with own_redis(tmp_path, *tls_settings(authority, "server"), plain=False) as port:
        with pytest.raises(CertificateRefused, match=problem):
            await server_kind(port, tmp_path, **CA, **CLIENT)
        (tmp_path / "mine").rename(tmp_path / "old")
        authority.sign("server")
        authority.sign("mine").rename(tmp_path / "mine")
    with own_redis(tmp_path, *tls_settings(authority, "server"), plain=False) as port:
        assert await server_kind(port, tmp_path, **CA, **CLIENT) == "Redis"


async def test_an_unreadable_certificate_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.crt").write_text("no certificate")
    with own_redis(tmp_path) as port, pytest.raises(CertificateRefused, match="PEM"):
        await server_kind(port, tmp_path, **CA)


async def test_a_forbidden_address_is_reported_with_its_remedy() -> None:
    spec = BrokerConnectionSpec.model_validate({"redis": {"url": f"redis://{HERE}:6379/0"}})
    async with open_broker(spec, no_secrets) as broker:
        with pytest.raises(AddressForbidden, match="allowAddresses"):
            await broker.server_info()


async def test_a_certificate_for_another_address_is_reported(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.sign("server", address="192.0.2.1")
    settings = (*tls_settings(authority, "server"), "--tls-auth-clients", "no")
    with own_redis(tmp_path, *settings, plain=False) as port, pytest.raises(CertificateRefused, match="another name"):
        await server_kind(port, tmp_path, **CA)
