"""Deliver messages by HTTP: render the request, send it, judge the response.

Certificates and header values come from Secrets. Changed Secrets are used from the next request on, with new
connections.
"""

import asyncio
from collections.abc import Sequence

from deadletter import wall_clock
from deadletter.api.base import Tls
from deadletter.api.delivery import HttpDelivery
from deadletter.core.letters import Message
from deadletter.net.secrets import Secrets, read_tls_files
from deadletter.net.tls import UnreadableCertificate, client_context
from deadletter.workers.delivery.base import DeliveryMetadata
from deadletter.workers.delivery.http.client import HttpClient
from deadletter.workers.delivery.http.errors import HttpError, TlsError
from deadletter.workers.delivery.http.outcomes import outcome_of_error, outcome_of_response
from deadletter.workers.delivery.http.request import RequestRenderer
from deadletter.workers.delivery.http.resolver import GuardedResolver, Resolver, resolve_host
from deadletter.workers.delivery.http.url import Url
from deadletter.workers.delivery.outcome import DeliveryOutcome

ALPN_PROTOCOLS = ("http/1.1",)
SECRET_REFRESH_INTERVAL_S = 5.0


def open_http_client(url: str, tls: Tls | None, secrets: Secrets, resolver: GuardedResolver) -> HttpClient:
    """Return a client of a URL with the certificates its Secrets hold; HttpError if they cannot be used."""
    parsed = Url.parse(url)
    if not parsed.is_secure:
        return HttpClient(parsed, resolver)
    try:
        files = read_tls_files(tls, secrets)
    except KeyError as error:
        raise TlsError("a Secret named in delivery.http.tls does not exist or lacks its key") from error
    try:
        tls_context = client_context(*files, verify=not (tls and tls.insecure_skip_verify), alpn=ALPN_PROTOCOLS)
    except UnreadableCertificate as error:
        raise TlsError(f"{error}: check the Secrets named in delivery.http.tls") from error
    return HttpClient(parsed, resolver, tls_context)


def fixed_headers(spec: HttpDelivery, secrets: Secrets) -> list[tuple[str, str]]:
    """Return the headers of every request, with their Secret values; KeyError if a Secret lacks its key."""
    headers = []
    for header in spec.headers:
        value = header.value or ""
        if header.value_from is not None:
            reference = header.value_from.secret_key_ref
            value = secrets(reference.name, reference.key).decode("latin-1").strip()
        headers.append((header.name, value.replace("\r", "").replace("\n", "")))
    return headers


class HttpMessageDelivery:
    """Delivers messages to one URL. Connects at the first attempt."""

    def __init__(
        self,
        spec: HttpDelivery,
        url: str,
        timeout_s: float,
        secrets: Secrets,
        allow: Sequence[str] = (),
        resolver: Resolver = resolve_host,
    ) -> None:
        self._spec, self._url, self._timeout_s, self._secrets = spec, url, timeout_s, secrets
        self._resolver = GuardedResolver(allow, resolver)
        self._client: HttpClient | None = None
        self._renderer: RequestRenderer | None = None
        self._secret_values: tuple[bytes, ...] | None = None
        self._secrets_read_at = 0.0
        self._success_statuses = frozenset(status for status in range(100, 600) if spec.is_success(status))

    async def attempt(self, message: Message, metadata: DeliveryMetadata) -> DeliveryOutcome:
        """Deliver a message once. A problem of the target itself is an outcome with a fault."""
        try:
            client, renderer = await self._open()
            head = renderer.render_head(message, metadata)
            response = await client.exchange(head, message.value or b"", self._timeout_s)
        except HttpError as error:
            return outcome_of_error(error)
        is_success = response.status in self._success_statuses
        return outcome_of_response(response, is_success=is_success, now=wall_clock.now_ms())

    async def _open(self) -> tuple[HttpClient, RequestRenderer]:
        await self._close_if_secrets_changed()
        if self._client is None or self._renderer is None:
            client = open_http_client(self._url, self._spec.tls, self._secrets, self._resolver)
            try:
                headers = fixed_headers(self._spec, self._secrets)
            except KeyError as error:
                raise TlsError("a Secret named in delivery.http.headers does not exist or lacks its key") from error
            url, spec = client.url, self._spec
            self._renderer = RequestRenderer(spec.method, url.path, url.authority, headers, spec.forward_headers)
            self._client = client
        return self._client, self._renderer

    async def _close_if_secrets_changed(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._client is not None and now - self._secrets_read_at < SECRET_REFRESH_INTERVAL_S:
            return
        self._secrets_read_at = now
        try:
            values = tuple(self._secrets(ref.name, ref.key) for ref in self._spec.secret_keys)
        except KeyError:  # deleted, or not completely written yet: the current client may still work
            return
        if values != self._secret_values:
            self._secret_values = values
            await self.close()

    async def close(self) -> None:
        """Close the connections to the service."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
