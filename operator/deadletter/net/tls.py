"""Make TLS contexts of clients: verified by default, with a CA and a client certificate if configured."""

import os
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path


class UnreadableCertificate(ValueError):
    """A CA, client certificate or key is not valid PEM."""


def client_context(
    ca: bytes | None = None,
    certificate: bytes | None = None,
    key: bytes | None = None,
    *,
    verify: bool = True,
    alpn: Sequence[str] = (),
) -> ssl.SSLContext:
    """Make a context that verifies the server and its name; UnreadableCertificate if a file is not valid PEM.

    Without a CA, the authorities of the system are trusted. `alpn` lists the protocols to offer.
    """
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if alpn:
            context.set_alpn_protocols(alpn)
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            _load_certificate(context, certificate + b"\n" + (key or b""))
    except (ssl.SSLError, ValueError) as error:
        raise UnreadableCertificate("the CA, the client certificate or its key is not valid PEM") from error
    return context


def _load_certificate(context: ssl.SSLContext, pem: bytes) -> None:
    # The ssl module loads a client certificate from a file only. Only this user may read the file (mkstemp), it is in
    # the memory-backed /tmp of the pod, and it is deleted at once.
    descriptor, name = tempfile.mkstemp(prefix="dlq-tls-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()
