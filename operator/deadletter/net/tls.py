"""TLS towards a service: verified by default, with a CA and a client certificate from Secrets when asked."""

import os
import ssl
import tempfile
from pathlib import Path


class UnreadableCertificate(ValueError):
    """A CA, client certificate or key is not valid PEM."""


def context(
    ca: bytes | None = None, certificate: bytes | None = None, key: bytes | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """A context that verifies the server and its name; UnreadableCertificate when a certificate cannot be read."""
    try:
        made = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["http/1.1"])
        if not verify:
            made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            _present(made, certificate + b"\n" + (key or b""))
    except (ssl.SSLError, ValueError) as error:
        raise UnreadableCertificate("the CA or the client certificate cannot be read") from error
    return made


def _present(made: ssl.SSLContext, pair: bytes) -> None:
    # The ssl module takes a client certificate only from a file; this one is ours alone and gone at once.
    number, name = tempfile.mkstemp()
    try:
        with os.fdopen(number, "wb") as file:
            file.write(pair)
        made.load_cert_chain(name)
    finally:
        Path(name).unlink()
