"""One keep-alive connection: a request goes out, its answer is gathered as bytes come in.

Every way an answer can end is here:

- whole (length, chunks): the connection may be used again, if both sides say so
- closed by the server where neither length nor chunks were named: whole, too
- over 64 KiB of body: cut and taken; the connection is closed
- over 64 KiB of head, or of trailers and the like beside the body, not HTTP, too many interim answers: BadAnswer
- reset, or closed before it was whole: Broken
- not whole in time: TimedOut
"""

import asyncio
from typing import Any, cast

import httptools

from deadletter.net.tls_errors import refusal
from deadletter.workers.delivery.http.errors import InvalidResponse, ConnectionBroken, CertificateRejected, HttpError, ResponseTimeout
from deadletter.workers.delivery.http.response import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_INTERIM_RESPONSES, Response

JOINED_LIMIT = 16 << 10
FRAME_BYTES = 16  # what a byte of body may cost when it is a chunk of its own


class HttpConnection(asyncio.Protocol):
    """A connection and the one exchange that may be under way on it. Methods named `on_*` are the parser's."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Response] | None = None
        self.heard = False  # a byte of the present answer has come
        self.born = 0.0
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._beside = 0  # bytes that brought no body: head, frames of chunks, trailers
        self._interim = 0
        self._in_body = False

    @property
    def is_open(self) -> bool:
        """Can another request go out?"""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, seconds: float) -> Response:
        """Send a request and give its whole answer; HttpError otherwise, and then the connection is closed."""
        if self._transport is None or not self.is_open:
            raise ConnectionBroken("the connection was closed")
        loop = asyncio.get_running_loop()
        self._begin()
        self.heard = False
        waiting: asyncio.Future[Response] = loop.create_future()
        self._waiting = waiting
        clock = loop.call_later(seconds, self._end, ResponseTimeout("no whole answer in time"))
        self._send(self._transport, head, body)
        try:
            answer = await waiting
        except BaseException:
            self.close()
            raise
        finally:
            clock.cancel()
            self._waiting = None
        return answer

    @staticmethod
    def _send(transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if len(body) <= JOINED_LIMIT:
            transport.write(head + body)
        else:  # a copy of a large body costs more than a second write
            transport.write(head)
            transport.write(body)

    def close(self) -> None:
        """Let go at once; what was not sent is not sent any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; those nobody asked for end the connection."""
        if self._waiting is None or self._waiting.done():
            self.close()
            return
        self.heard = True
        size = self._size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(InvalidResponse("the answer is not HTTP/1.1"))
            return
        self._beside = max(self._beside + len(data) - FRAME_BYTES * (self._size - size), 0)
        if self._beside > MAX_HEAD_BYTES:
            self._end(InvalidResponse("the head or the trailers of the answer are too long"))

    def eof_received(self) -> bool:
        """The server sends no more."""
        self._closed(is_clean=True)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._closed(is_clean=exc is None, refused=refusal(exc))

    def _closed(self, *, is_clean: bool, refused: str = "") -> None:
        if self._waiting is None or self._waiting.done():
            return
        if is_clean and self._in_body and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self._finish(self._parser.get_status_code(), is_cut=False)
            self.close()
        else:
            # With TLS 1.3 a server objects to our certificate when we believe that all is well.
            self._end(CertificateRejected(refused) if refused else ConnectionBroken("the connection ended before the answer"))

    def on_message_begin(self) -> None:
        """An answer begins; a second one to the same request is not ours."""
        if self._waiting is None or self._waiting.done():
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer; a trailer is none, whatever its name."""
        if not self._in_body:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """What follows is the body."""
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        room = MAX_BODY_BYTES - self._size
        if room > 0:
            self._body.append(body[:room])
        self._size += len(body)
        if self._size > MAX_BODY_BYTES and self._waiting is not None and not self._waiting.done():
            self._finish(self._parser.get_status_code(), is_cut=True)
            self.close()

    def on_message_complete(self) -> None:
        """The answer is whole, or it was an interim one (1xx) and the true one follows."""
        status = self._parser.get_status_code()
        if status < 200:
            self._pass_over()
        elif self._waiting is not None and not self._waiting.done():
            keeps = self._parser.should_keep_alive() and not self._unsent()
            self._finish(status, is_cut=False)
            if not keeps:
                self.close()

    def _pass_over(self) -> None:
        interim, beside = self._interim + 1, self._beside
        self._begin()
        self._interim, self._beside = interim, beside
        if interim > MAX_INTERIM_RESPONSES:
            self._end(InvalidResponse("too many interim answers"))

    def _unsent(self) -> bool:
        # An answer before the request was out (413, say): the rest of the request would be read as the next one.
        return self._transport is None or self._transport.get_write_buffer_size() > 0

    def _finish(self, status: int, *, is_cut: bool) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(Response(status, self._headers, b"".join(self._body), is_cut))

    def _end(self, error: HttpError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        self.close()
