"""Read the Secrets of a BrokerConnection; what is missing or unreadable becomes a broker error."""

import ssl

from deadletter.api.base import Tls
from deadletter.brokers.errors import AuthenticationFailed, CertificateRefused
from deadletter.net.secrets import Secrets, read_tls_files
from deadletter.net.tls import UnreadableCertificate, client_context


def read_secret(secrets: Secrets, name: str, key: str) -> bytes:
    """Read one key of a Secret; AuthenticationFailed names it if it is missing."""
    try:
        return secrets(name, key)
    except KeyError as error:
        raise AuthenticationFailed(f"Secret {name} has no key {key}; add it") from error


def read_text(secrets: Secrets, name: str, key: str) -> str:
    """Read a user name or password without the line break that editors append."""
    return read_secret(secrets, name, key).decode().strip("\r\n")


def tls_files(tls: Tls | None, secrets: Secrets) -> tuple[bytes | None, ...]:
    """Read every file that a TLS section names: authority, certificate, key."""
    return read_tls_files(tls, lambda name, key: read_secret(secrets, name, key))


def tls_context(tls: Tls | None, secrets: Secrets) -> ssl.SSLContext:
    """Make the TLS context of a broker client; CertificateRefused if a file is not valid PEM."""
    verify = tls is None or not tls.insecure_skip_verify
    try:
        return client_context(*tls_files(tls, secrets), verify=verify)
    except UnreadableCertificate as error:
        raise CertificateRefused("a certificate or key of the TLS Secrets is not valid PEM") from error
