"""An HTTP client of one URL: a pool of connections to checked addresses.

A request is repeated once, at once and on a new connection, only if a reused connection ended before the first byte of
a response: the server had closed it while it was idle. If the server did process the request, it sees the same
`Idempotency-Key` again, as it may at the next attempt: delivery is at least once. Every other failure is left to the
retry policy. Redirects are not followed; they are responses like any other.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence

from deadletter.net.tls_errors import certificate_problem
from deadletter.workers.delivery.http.connection import HttpConnection, Response
from deadletter.workers.delivery.http.errors import (
    CertificateRejected,
    ConnectFailed,
    ConnectionBroken,
    HttpError,
    ResponseTimeout,
    TlsError,
)
from deadletter.workers.delivery.http.resolver import GuardedResolver
from deadletter.workers.delivery.http.url import Url

MAX_IDLE_S = 60.0
MAX_LIFETIME_S = 300.0  # then the host is resolved again, so that a Service that moved is found
CONNECT_TIMEOUT_S = 10.0


def http_error_of(error: Exception) -> HttpError:
    """Convert an error of connecting; the text names no address."""
    if problem := certificate_problem(error):
        return CertificateRejected(problem)
    if isinstance(error, ssl.SSLError):
        return TlsError("the TLS handshake failed")
    if isinstance(error, TimeoutError):
        return ResponseTimeout("the connection could not be opened in time")
    if isinstance(error, ConnectionRefusedError):
        return ConnectFailed("the connection was refused")
    if isinstance(error, ConnectionError):
        return ConnectionBroken("the connection was reset")
    return ConnectFailed("there is no route to the target")


class HttpClient:
    """Sends requests to one URL. Every exchange has its own connection; the caller limits how many run at once."""

    def __init__(self, url: Url, resolver: GuardedResolver, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._resolver = resolver
        self._tls = tls if url.is_secure else None
        self._idle: deque[tuple[HttpConnection, float]] = deque()
        self._is_closed = False

    async def exchange(self, head: bytes, body: bytes, timeout_s: float) -> Response:
        """Send a rendered request and return the response; HttpError if there is none within `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = self._take_idle(loop.time())
        if connection is not None:
            try:
                return await self._exchange_on(connection, head, body, deadline)
            except ConnectionBroken:
                if connection.has_received_bytes:
                    raise
        return await self._exchange_on(await self._connect(deadline), head, body, deadline)

    async def _exchange_on(self, connection: HttpConnection, head: bytes, body: bytes, deadline: float) -> Response:
        loop = asyncio.get_running_loop()
        response = await connection.exchange(head, body, deadline - loop.time())
        self._put_idle(connection, loop.time())
        return response

    def _take_idle(self, now: float) -> HttpConnection | None:
        while self._idle:
            connection, since = self._idle.pop()  # the last used one, so that surplus connections age and are closed
            if connection.is_open and now - since < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def _put_idle(self, connection: HttpConnection, now: float) -> None:
        if connection.is_open and now - connection.opened_at < MAX_LIFETIME_S and not self._is_closed:
            self._idle.append((connection, now))
        else:
            connection.close()
        while self._idle and (not self._idle[0][0].is_open or now - self._idle[0][1] > MAX_IDLE_S):
            self._idle.popleft()[0].close()

    async def _connect(self, deadline: float) -> HttpConnection:
        loop = asyncio.get_running_loop()
        # Outside the deadline: a resolver that hangs is a fault of the target, not a timeout of this message.
        addresses = await self._resolver.resolve(self.url.host, self.url.port)
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + CONNECT_TIMEOUT_S)):
                connection = await self._dial_first(addresses)
        except TimeoutError as error:
            raise ResponseTimeout("the connection could not be opened in time") from error
        connection.opened_at = loop.time()
        return connection

    async def _dial_first(self, addresses: Sequence[str]) -> HttpConnection:
        failure: HttpError = ConnectFailed("there is no address to connect to")
        for address in addresses:
            try:
                return await self._dial(address)
            except OSError as error:  # ssl.SSLError and TimeoutError are OSErrors
                failure = http_error_of(error)
                failure.__cause__ = error
        raise failure

    async def _dial(self, address: str) -> HttpConnection:
        server_hostname = self.url.host if self._tls is not None else None
        _, connection = await asyncio.get_running_loop().create_connection(
            HttpConnection, address, self.url.port, ssl=self._tls, server_hostname=server_hostname
        )
        return connection

    async def close(self) -> None:
        """Close every idle connection now, and those in use when their exchange ends."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[0].close()
