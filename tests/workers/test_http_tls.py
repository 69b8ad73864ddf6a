"""TLS to a service: verified by its authority, or a fault of the target."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from deadletter.net.tls import UnreadableCertificate, client_context
from deadletter.workers.delivery.http.errors import CertificateRejected, TlsError
from tests.workers.raw_servers import OK, ask_tls, refusing_server, saying, server, server_tls


async def test_tls_with_a_ca_and_a_client_certificate(certificates: Path):
    ca, pair = (certificates / "ca.crt").read_bytes(), ("client.crt", "client.key")
    own = client_context(ca, *((certificates / name).read_bytes() for name in pair))
    async with server(saying(OK), server_tls(certificates, wants_client=True)) as port:
        assert (await ask_tls(port, own)).body == b"ok"


async def test_an_untrusted_certificate_is_rejected(certificates: Path):
    async with server(saying(OK), server_tls(certificates)) as port:
        with pytest.raises(CertificateRejected, match="caSecretRef"):
            await ask_tls(port, client_context())


async def test_a_certificate_for_another_name_is_rejected(certificates: Path):
    ca = (certificates / "ca.crt").read_bytes()
    async with server(saying(OK), server_tls(certificates)) as port:
        with pytest.raises(CertificateRejected, match="another name"):
            await ask_tls(port, client_context(ca), "other.test")
        assert (await ask_tls(port, client_context(ca, verify=False), "other.test")).status == 200


async def test_plain_http_instead_of_tls_is_an_error(certificates: Path):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with server(talk) as port:
        with pytest.raises(TlsError):
            await ask_tls(port, client_context())


def test_a_certificate_that_is_not_pem_is_an_error():
    with pytest.raises(UnreadableCertificate):
        client_context(b"no certificate")
    with pytest.raises(UnreadableCertificate):
        client_context(None, b"no certificate", b"no key")


def test_tls_on_uvloop(certificates: Path):
    async def exchange() -> None:
        ca = (certificates / "ca.crt").read_bytes()
        async with server(saying(OK), server_tls(certificates)) as port:
            assert (await ask_tls(port, client_context(ca))).body == b"ok"
            with pytest.raises(CertificateRejected):
                await ask_tls(port, client_context())
        tls = server_tls(certificates, wants_client=True)
        with refusing_server(tls) as port, pytest.raises(CertificateRejected, match="clientSecretRef"):
            await ask_tls(port, client_context(ca))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(exchange())
