"""A BrokerConnection and its Secrets -> an open broker."""

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from deadletter.api.base import Tls
from deadletter.api.broker_connections import BrokerConnectionSpec, KafkaConnection
from deadletter.brokers.address_check import address_guard
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import AuthenticationFailed, CertificateRefused

Secrets = Callable[[str, str], bytes]


def mounted_secrets(directory: Path) -> Secrets:
    """Secrets mounted as files, `<directory>/<name>/<key>`, read each time: a rotated one is taken up."""

    def read(name: str, key: str) -> bytes:
        try:
            return (directory / name / key).read_bytes()
        except OSError as error:
            raise KeyError(f"{name}/{key}") from error

    return read


def open_broker(
    spec: BrokerConnectionSpec, secrets: Secrets, allow: Sequence[str] = ()
) -> AbstractAsyncContextManager[Broker]:
    """Dials at the first request, so an unreachable broker shows there and not here."""
    if spec.redis is not None:
        from deadletter.brokers.redis.connection import open_redis

        return open_redis(spec.redis, secrets, allow)
    if spec.kafka is None:
        raise ValueError("exactly one of kafka and redis must be set")
    return _open_kafka(spec.kafka, secrets, allow)


@asynccontextmanager
async def _open_kafka(spec: KafkaConnection, secrets: Secrets, allow: Sequence[str]) -> AsyncIterator[Broker]:
    from deadletter.brokers.kafka.broker import KafkaBroker
    from deadletter.brokers.kafka.client import KafkaClient

    line = KafkaClient(spec.bootstrap_servers, KafkaCredentials(spec, secrets), address_guard(allow))
    try:
        yield KafkaBroker(line)
    finally:
        await line.close()


class KafkaCredentials:
    """The security settings of a Kafka client, made anew only when a Secret changed."""

    def __init__(self, spec: KafkaConnection, secrets: Secrets) -> None:
        self._spec, self._secrets = spec, secrets
        self._seen: tuple[bytes, ...] | None = None
        self._made: dict[str, Any] = {}

    def __call__(self) -> Mapping[str, Any]:
        """What is right now."""
        seen = self._read()
        if seen != self._seen:
            self._made, self._seen = self._make(), seen
        return self._made

    def _read(self) -> tuple[bytes, ...]:
        sasl = self._spec.sasl
        login = [secret(self._secrets, sasl.secret_ref.name, key) for key in ("username", "password")] if sasl else []
        return (*login, *tls_files(self._spec.tls, self._secrets))

    def _make(self) -> dict[str, Any]:
        sasl, tls = self._spec.sasl, self._spec.tls
        settings: dict[str, Any] = {"security_protocol": ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")}
        if tls is not None:
            settings["ssl_context"] = tls_context(tls, self._secrets)
        if sasl is not None:
            settings["sasl_mechanism"] = sasl.mechanism
            for field, key in (("sasl_plain_username", "username"), ("sasl_plain_password", "password")):
                settings[field] = secret(self._secrets, sasl.secret_ref.name, key).decode().strip("\r\n")
        return settings


def secret(secrets: Secrets, name: str, key: str) -> bytes:
    """One key of a Secret; the error names it and never its value."""
    try:
        return secrets(name, key)
    except KeyError as error:
        raise AuthenticationFailed(f"Secret {name} has no key {key}; add it") from error


def tls_files(tls: Tls | None, secrets: Secrets) -> list[bytes]:
    """Every file a TLS section names: authority, certificate, key."""
    if tls is None:
        return []
    ca, client = tls.ca_secret_ref, tls.client_secret_ref
    files = [secret(secrets, ca.name, ca.key)] if ca else []
    return files + [secret(secrets, client.name, key) for key in ("tls.crt", "tls.key") if client]


def tls_context(tls: Tls, secrets: Secrets) -> ssl.SSLContext:
    """How the other side is trusted and who we are."""
    try:
        ca, client = tls.ca_secret_ref, tls.client_secret_ref
        authority = secret(secrets, ca.name, ca.key).decode() if ca else None
        context = ssl.create_default_context(cadata=authority)
        if tls.insecure_skip_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if client is not None:
            _load_pair(context, secret(secrets, client.name, "tls.crt"), secret(secrets, client.name, "tls.key"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise CertificateRefused("a certificate or key of the TLS Secrets cannot be read as PEM") from error
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The ssl module takes files only; they live in memory-backed /tmp of the pod for a moment."""
    with tempfile.TemporaryDirectory(prefix="dlq-tls-") as folder:
        pair = Path(folder, "tls.crt"), Path(folder, "tls.key")
        for path, content in zip(pair, (certificate, key), strict=True):
            path.touch(0o600)
            path.write_bytes(content)
        context.load_cert_chain(*map(str, pair))
