"""Read the Secrets that the API objects name."""

import base64
import binascii
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deadletter.api.base import Tls

READABLE_LABEL = "deadletter.dev/readable"  # a Secret that the operator may read has it, with the value "true"
Secrets = Callable[[str, str], bytes]  # name and key of a Secret -> value; KeyError if either is missing


class TlsFiles(NamedTuple):
    """The PEM files of a TLS section: certificate authority, client certificate, private key."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


def mounted_secrets(directory: Path) -> Secrets:
    """Return a reader of `<directory>/<name>/<key>`. It reads the file at each call, so it follows a rotation."""

    def read(name: str, key: str) -> bytes:
        try:
            return (directory / name / key).read_bytes()
        except OSError as error:
            raise KeyError(f"{name}/{key}") from error

    return read


def decode_secret(body: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the keys and values of a Secret of the API server; a value that is not Base64 becomes empty."""
    return {key: _decode_or_empty(text) for key, text in (body.get("data") or {}).items()}


def _decode_or_empty(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""


def read_tls_files(tls: Tls | None, secrets: Secrets) -> TlsFiles:
    """Read every file that a TLS section names; KeyError if a Secret or a key is missing."""
    if tls is None:
        return TlsFiles()
    ca, client = tls.ca_secret_ref, tls.client_secret_ref
    return TlsFiles(
        ca=secrets(ca.name, ca.key) if ca else None,
        certificate=secrets(client.name, "tls.crt") if client else None,
        key=secrets(client.name, "tls.key") if client else None,
    )
