"""A client of one target: a pool of checked connections, and when a request may be sent twice.

A request is repeated once, at once and on a new connection, when it went out on a connection that was used before and
that ended without a single byte of an answer: the server had closed it while it was idle. If the server did read it
after all, it sees the same `Idempotency-Key` twice, as it would at the next attempt anyway: delivery is at least once.
Everything else is an attempt and the policy's business. Redirects are answers like any other; nothing is followed.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence

from deadletter.net.tls_errors import refusal
from deadletter.workers.delivery.http.connection import HttpConnection
from deadletter.workers.delivery.http.errors import (
    ConnectionBroken,
    CertificateRejected,
    HttpError,
    ResponseTimeout,
    TlsError,
    ConnectFailed,
)
from deadletter.workers.delivery.http.resolver import Guard
from deadletter.workers.delivery.http.response import Response
from deadletter.workers.delivery.http.url import Url

MAX_IDLE_S = 60.0
MAX_LIFETIME_S = 300.0  # then the name is resolved anew, so that a moved Service is found
CONNECT_TIMEOUT_S = 10.0


def http_error_of(error: Exception) -> HttpError:
    """An error of a connect, in our words; it names no address."""
    if sentence := refusal(error):
        return CertificateRejected(sentence)
    if isinstance(error, ssl.SSLError):
        return TlsError("the TLS handshake failed")
    if isinstance(error, TimeoutError):
        return ResponseTimeout("no connection in time")
    if isinstance(error, ConnectionRefusedError):
        return ConnectFailed("the connection was refused")
    if isinstance(error, ConnectionError):
        return ConnectionBroken("the connection was reset")
    return ConnectFailed("there is no way to the target")


class HttpClient:
    """Posts to one target. Each exchange has a connection of its own; callers bound how many run at once."""

    def __init__(self, target: Url, guard: Guard, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self._guard = guard
        self._tls = tls if target.secure else None
        self._idle: deque[tuple[HttpConnection, float]] = deque()
        self._is_closed = False

    async def exchange(self, head: bytes, body: bytes, seconds: float) -> Response:
        """The answer to a request, given as its head and its body; HttpError when there is none within `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        connection = self._take(loop.time())
        if connection is not None:
            try:
                return await self._ask(connection, head, body, end)
            except ConnectionBroken:
                if connection.heard:
                    raise
        return await self._ask(await self._connect(end), head, body, end)

    async def _ask(self, connection: HttpConnection, head: bytes, body: bytes, end: float) -> Response:
        loop = asyncio.get_running_loop()
        answer = await connection.exchange(head, body, end - loop.time())
        self._give_back(connection, loop.time())
        return answer

    def _take(self, now: float) -> HttpConnection | None:
        while self._idle:
            connection, since = self._idle.pop()  # the last used: the others grow old and go
            if connection.is_open and now - since < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: HttpConnection, now: float) -> None:
        if connection.is_open and now - connection.born < MAX_LIFETIME_S and not self._is_closed:
            self._idle.append((connection, now))
        else:
            connection.close()
        while self._idle and (not self._idle[0][0].is_open or now - self._idle[0][1] > MAX_IDLE_S):
            self._idle.popleft()[0].close()

    async def _connect(self, end: float) -> HttpConnection:
        loop = asyncio.get_running_loop()
        # Not under the clock of the attempt: a resolver that hangs is the queue's fault, not a timeout of the message.
        addresses = await self._guard.addresses(self.target.host, self.target.port)
        try:
            async with asyncio.timeout_at(min(end, loop.time() + CONNECT_TIMEOUT_S)):
                connection = await self._reach(addresses)
        except TimeoutError as error:
            raise ResponseTimeout("no connection in time") from error
        connection.born = loop.time()
        return connection

    async def _reach(self, addresses: Sequence[str]) -> HttpConnection:
        fault: HttpError = ConnectFailed("there is no address to try")
        for address in addresses:
            try:
                return await self._dial(address)
            except OSError as error:  # ssl.SSLError and TimeoutError are OSErrors
                fault = http_error_of(error)
                fault.__cause__ = error
        raise fault

    async def _dial(self, address: str) -> HttpConnection:
        name = self.target.host if self._tls is not None else None
        _, connection = await asyncio.get_running_loop().create_connection(
            HttpConnection, address, self.target.port, ssl=self._tls, server_hostname=name
        )
        return connection

    async def close(self) -> None:
        """Close every idle connection, and those in use when their exchange is over."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[0].close()
