"""One delivery of one message: the request is made, sent, and its outcome judged. It never raises."""

import asyncio
from collections.abc import Callable

from deadletter import logs
from deadletter.api.assignments import CourierAssignment
from deadletter.api.base import Tls
from deadletter.api.delivery import HttpDelivery
from deadletter.brokers.types import Claim
from deadletter.clock import now_ms
from deadletter.net.tls import UnreadableCertificate, context
from deadletter.workers.courier import letters
from deadletter.workers.delivery.http import Client, HttpError, Target
from deadletter.workers.delivery.http.errors import TlsError
from deadletter.workers.delivery.http.request import RequestRenderer
from deadletter.workers.delivery.http.resolver import Guard, Resolver, resolve
from deadletter.workers.delivery.outcome import (
    DeliveryOutcome,
    outcome_of_courier_error,
    outcome_of_error,
    outcome_of_response,
)

Secrets = Callable[[str, str], bytes]
SECRET_REFRESH_INTERVAL_S = 5.0  # between two looks at the Secrets of the delivery



def open_http_client(url: str, tls: Tls | None, secrets: Secrets, guard: Guard) -> Client:
    """A client of a URL with the certificates its Secrets hold; HttpError when that can never work."""
    target = Target.parse(url)
    if not target.secure:
        return Client(target, guard)
    try:
        ca = secrets(tls.ca_secret_ref.name, tls.ca_secret_ref.key) if tls and tls.ca_secret_ref else None
        own = tls.client_secret_ref.name if tls and tls.client_secret_ref else None
        pair = (secrets(own, "tls.crt"), secrets(own, "tls.key")) if own else (None, None)
    except KeyError as error:
        raise TlsError("a Secret with a certificate is missing or lacks its key") from error
    try:
        trusted = context(ca, *pair, verify=not (tls and tls.insecure_skip_verify))
    except UnreadableCertificate as error:
        raise TlsError(str(error)) from error
    return Client(target, guard, trusted)


def fixed_headers(http: HttpDelivery, secrets: Secrets) -> list[tuple[str, str]]:
    """The headers of every request."""
    rendered = []
    for header in http.headers:
        value = header.value or ""
        if header.value_from is not None:
            reference = header.value_from.secret_key_ref
            value = secrets(reference.name, reference.key).decode("latin-1").strip()
        rendered.append((header.name, value.replace("\r", "").replace("\n", "")))
    return rendered


class HttpMessageDelivery:
    """Delivers to one service. What is wrong with the target itself comes back as an outcome with a fault."""

    def __init__(self, assignment: CourierAssignment, secrets: Secrets, resolver: Resolver = resolve) -> None:
        self._assignment = assignment
        self._http = assignment.delivery.http
        self._seconds = assignment.policy.policy().timeout / 1000
        self._secrets = secrets
        self._guard = Guard(assignment.allow, resolver)
        self._client: Client | None = None
        self._requests: RequestRenderer | None = None
        self._log = logs.get(__name__)
        self._seen: tuple[bytes, ...] | None = None
        self._looked_at = 0.0
        self._done = frozenset(status for status in range(100, 600) if self._http.is_success(status))

    def _open(self) -> tuple[Client, RequestRenderer]:
        if self._client is None or self._requests is None:
            client = open_http_client(self._assignment.url, self._http.tls, self._secrets, self._guard)
            headers = fixed_headers(self._http, self._secrets)
            target = client.target
            self._requests = RequestRenderer(
                self._http.method, target.path, target.authority, headers, self._http.forward_headers
            )
            self._client = client
        return self._client, self._requests

    async def _renew(self) -> None:
        """Take up Secrets that changed: with the next request, on new connections."""
        now = asyncio.get_running_loop().time()
        if self._client is not None and now - self._looked_at < SECRET_REFRESH_INTERVAL_S:
            return
        self._looked_at = now
        try:
            seen = tuple(self._secrets(ref.name, ref.key) for ref in self._http.secret_keys)
        except KeyError:  # half written, or gone: what we have may still do
            return
        if seen != self._seen:
            self._seen = seen
            await self.close()

    async def attempt(self, claim: Claim) -> DeliveryOutcome:
        """Deliver once."""
        try:
            return await self._try(claim)
        except HttpError as error:
            return outcome_of_error(error)
        except Exception as error:  # noqa: BLE001  (a message we break over is tried again, and never stays in our hands)
            self._log.error("a delivery went wrong", error=(origin := logs.origin_of(error)))
            return outcome_of_courier_error(origin)

    async def _try(self, claim: Claim) -> DeliveryOutcome:
        try:
            await self._renew()
            client, requests = self._open()
        except KeyError as error:
            raise TlsError("a Secret with a header is missing or lacks its key") from error
        head = requests.head(claim.message, letters.delivery_metadata(claim))
        answer = await client.exchange(head, claim.message.value or b"", self._seconds)
        return outcome_of_response(answer, is_success=answer.status in self._done, now=now_ms())

    async def close(self) -> None:
        """Let go of connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
