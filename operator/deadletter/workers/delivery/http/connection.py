"""One keep-alive connection: send a request, collect the response while its bytes arrive.

Every way a response can end:

- complete by length or chunks: the connection may be reused if both sides allow it
- closed by the server, with neither length nor chunks: complete
- more than 64 KiB of body: truncated and returned; the connection is closed
- more than 64 KiB of head, trailers or chunk framing, not HTTP, too many interim responses: InvalidResponse
- reset, or closed before it was complete: ConnectionBroken
- not complete in time: ResponseTimeout
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

from deadletter.net.tls_errors import certificate_problem
from deadletter.workers.delivery.http.errors import (
    CertificateRejected,
    ConnectionBroken,
    HttpError,
    InvalidResponse,
    ResponseTimeout,
)

MAX_BODY_BYTES = 64 << 10
MAX_HEAD_BYTES = 64 << 10
MAX_INTERIM_RESPONSES = 16
MAX_JOINED_BODY_BYTES = 16 << 10
MAX_CHUNK_FRAME_BYTES = 16  # framing of a chunk that holds a single byte of body


@dataclass(slots=True)
class Response:
    """Status, headers by lower-case name (the last one of a name), and the body, truncated at 64 KiB."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpConnection(asyncio.Protocol):
    """A connection with at most one exchange at a time. httptools calls the methods named `on_*`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._response: asyncio.Future[Response] | None = None
        self.has_received_bytes = False  # of the current response
        self.opened_at = 0.0
        self._reset_parsing()

    def _reset_parsing(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._overhead_bytes = 0  # received bytes that are not body: head, chunk frames, trailers
        self._interim_responses = 0
        self._is_in_body = False

    @property
    def is_open(self) -> bool:
        """True if another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, timeout_s: float) -> Response:
        """Send a request and return the complete response. After an HttpError the connection is closed."""
        if self._transport is None or not self.is_open:
            raise ConnectionBroken("the connection was closed")
        loop = asyncio.get_running_loop()
        self._reset_parsing()
        self.has_received_bytes = False
        response: asyncio.Future[Response] = loop.create_future()
        self._response = response
        timer = loop.call_later(timeout_s, self._fail, ResponseTimeout("the response was not complete in time"))
        self._send(self._transport, head, body)
        try:
            return await response
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._response = None

    @staticmethod
    def _send(transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if len(body) <= MAX_JOINED_BODY_BYTES:
            transport.write(head + body)
        else:  # copying a large body costs more than a second write
            transport.write(head)
            transport.write(body)

    def close(self) -> None:
        """Abort the connection; unsent data is dropped."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _is_waiting(self) -> bool:
        return self._response is not None and not self._response.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the response; close the connection if no response is expected."""
        if not self._is_waiting:
            self.close()
            return
        self.has_received_bytes = True
        body_bytes = self._body_bytes
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(InvalidResponse("the response is not HTTP/1.1"))
            return
        received_body = self._body_bytes - body_bytes
        self._overhead_bytes = max(self._overhead_bytes + len(data) - MAX_CHUNK_FRAME_BYTES * received_body, 0)
        if self._overhead_bytes > MAX_HEAD_BYTES:
            self._fail(InvalidResponse("the head or the trailers of the response are too long"))

    def eof_received(self) -> bool:
        """Handle the end of the server's data, and let the transport close."""
        self._on_close(is_clean=True)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a closed or reset connection."""
        self._on_close(is_clean=exc is None, certificate_error=certificate_problem(exc))

    def _on_close(self, *, is_clean: bool, certificate_error: str = "") -> None:
        if not self._is_waiting:
            return
        if is_clean and self._is_in_body and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self._complete(self._parser.get_status_code())
            self.close()
        elif certificate_error:
            # With TLS 1.3 a server rejects our certificate after the handshake has succeeded for us.
            self._fail(CertificateRejected(certificate_error))
        else:
            self._fail(ConnectionBroken("the connection ended before the response"))

    def on_message_begin(self) -> None:
        """Close the connection if a second response to the same request begins."""
        if not self._is_waiting:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of the response; trailers are ignored."""
        if not self._is_in_body:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Expect the body."""
        self._is_in_body = True

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body; complete the response when the limit is exceeded."""
        free_bytes = MAX_BODY_BYTES - self._body_bytes
        if free_bytes > 0:
            self._body.append(body[:free_bytes])
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES and self._is_waiting:
            self._complete(self._parser.get_status_code())
            self.close()

    def on_message_complete(self) -> None:
        """Complete the response, or skip an interim one (1xx), which the final one follows."""
        status = self._parser.get_status_code()
        if status < 200:
            self._skip_interim_response()
        elif self._is_waiting:
            is_reusable = self._parser.should_keep_alive() and not self._has_unsent_data()
            self._complete(status)
            if not is_reusable:
                self.close()

    def _skip_interim_response(self) -> None:
        interim, overhead = self._interim_responses + 1, self._overhead_bytes
        self._reset_parsing()
        self._interim_responses, self._overhead_bytes = interim, overhead
        if interim > MAX_INTERIM_RESPONSES:
            self._fail(InvalidResponse("too many interim responses"))

    def _has_unsent_data(self) -> bool:
        # After a response to an unfinished request (413, for example) the rest would be read as the next request.
        return self._transport is None or self._transport.get_write_buffer_size() > 0

    def _complete(self, status: int) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(Response(status, self._headers, b"".join(self._body)))

    def _fail(self, error: HttpError) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
        self.close()
