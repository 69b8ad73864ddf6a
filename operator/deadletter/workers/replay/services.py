"""A service as a target: its client, guarded and with TLS, for as long as the Replay runs."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from deadletter.api.delivery import HttpDelivery, HttpHeader
from deadletter.brokers.credentials import read_secret as secret
from deadletter.net import tls
from deadletter.net.secrets import Secrets
from deadletter.workers.delivery.http.client import HttpClient
from deadletter.workers.delivery.http.request import RequestRenderer
from deadletter.workers.delivery.http.resolver import Guard
from deadletter.workers.delivery.http.url import Url
from deadletter.workers.replay.sinks import ServiceCarrier


def _value(header: HttpHeader, secrets: Secrets) -> str:
    if header.value_from is None:
        return header.value or ""
    ref = header.value_from.secret_key_ref
    return secret(secrets, ref.name, ref.key).decode("latin-1").strip("\r\n")


def _trust(http: HttpDelivery, secrets: Secrets) -> ssl.SSLContext:
    asked = http.tls
    if asked is None:
        return tls.client_context(alpn=("http/1.1",))
    ca, client = asked.ca_secret_ref, asked.client_secret_ref
    pair = [secret(secrets, client.name, key) for key in ("tls.crt", "tls.key")] if client else [None, None]
    return tls.client_context(secret(secrets, ca.name, ca.key) if ca else None, pair[0], pair[1], alpn=("http/1.1",))


@asynccontextmanager
async def open_service(
    url: str, http: HttpDelivery, secrets: Secrets, allow: Sequence[str]
) -> AsyncIterator[ServiceCarrier]:
    """A carrier to the service at `url`."""
    target = Url.parse(url)
    named = [(header.name, _value(header, secrets)) for header in http.headers]
    requests = RequestRenderer(http.method, target.path, target.authority, named, http.forward_headers)
    client = HttpClient(target, Guard(allow), _trust(http, secrets) if target.secure else None)
    try:
        yield ServiceCarrier(client, http, requests)
    finally:
        await client.close()
