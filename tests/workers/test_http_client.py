"""The HTTP client: valid and invalid responses, limits, and reuse of connections."""

import asyncio

import pytest
import uvloop

from deadletter.workers.delivery.http.client import HttpClient
from deadletter.workers.delivery.http.connection import MAX_BODY_BYTES
from deadletter.workers.delivery.http.errors import (
    ConnectFailed,
    ConnectionBroken,
    HttpError,
    InvalidResponse,
    ResponseTimeout,
)
from deadletter.workers.delivery.http.resolver import GuardedResolver
from deadletter.workers.delivery.http.url import Url
from tests.workers.raw_servers import HEAD, LOOPBACK, OK, ask, closed_port, read_request, saying, server

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "status", "body"),
    [
        ([OK], 200, b"ok"),
        ([bytes([byte]) for byte in OK], 200, b"ok"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1;x=y\r\n!\r\n0\r\n\r\n"], 200, b"ok!"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"until ", b"the end"], 200, b"until the end"),
        ([b"HTTP/1.0 200 OK\r\n\r\nold"], 200, b"old"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b""),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK], 200, b"ok"),
        ([b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"], 307, b""),
        ([b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno"], 500, b"no"),
    ],
)
async def test_valid_responses(parts: list[bytes], status: int, body: bytes):
    async with server(saying(*parts)) as port:
        answer = await ask(port)
    assert (answer.status, answer.body) == (status, body)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([b""], ConnectionBroken),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], ConnectionBroken),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"], ConnectionBroken),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha"], ConnectionBroken),
        ([b"SSH-2.0-OpenSSH\r\n"], InvalidResponse),
        ([b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nnoise"], InvalidResponse),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"], InvalidResponse),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 50, InvalidResponse),
    ],
)
async def test_invalid_responses(parts: list[bytes], error: type[HttpError]):
    async with server(saying(*parts)) as port:
        with pytest.raises(error):
            await ask(port)


async def test_an_endless_body_is_truncated():
    async with server(saying(CHUNKED, b"400\r\n" + b"x" * 1024 + b"\r\n", forever=True)) as port:
        answer = await ask(port)
    assert (answer.status, len(answer.body)) == (200, MAX_BODY_BYTES)


async def test_an_endless_head_is_refused():
    async with server(saying(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"y" * 1000 + b"\r\n", forever=True)) as port:
        with pytest.raises(InvalidResponse):
            await ask(port)


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (CHUNKED + b"0\r\n", b"X-More: " + b"y" * 1000 + b"\r\n"),
        (CHUNKED + b"0\r\nX-More: ", b"y" * 1000),
        (CHUNKED + b"2;x=", b"y" * 1000),
        (CHUNKED, b"1;x=" + b"y" * 1000 + b"\r\nz\r\n"),
    ],
    ids=["trailers", "one trailer", "one extension", "extensions"],
)
async def test_endless_chunk_frames_or_trailers_are_refused(begun: bytes, more: bytes):
    async with server(saying(begun, more, forever=True)) as port:
        with pytest.raises(InvalidResponse):
            await ask(port, 20)


async def test_a_body_in_one_byte_chunks_is_complete():
    async with server(saying(CHUNKED, *[b"1\r\nx\r\n" * 1024] * 60, b"0\r\n\r\n")) as port:
        answer = await ask(port)
    assert answer.body == b"x" * 60 * 1024


@pytest.mark.parametrize("size", [1, 1 << 16], ids=["by bytes", "at once"])
async def test_a_trailer_is_not_a_header_of_this_response_or_the_next(size: int):
    with_trailer = CHUNKED + b"2\r\nok\r\n0\r\nDlq-Action: discard\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (with_trailer, OK):
            await read_request(reader)
            for start in range(0, len(answer), size):
                writer.write(answer[start : start + size])
                await writer.drain()
                await asyncio.sleep(0)

    async with server(talk) as port:
        client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
        answers = [await client.exchange(HEAD, b"body", 60) for _ in range(2)]
        await client.close()
    assert [answer.body for answer in answers] == [b"ok", b"ok"]
    assert [sorted(answer.headers) for answer in answers] == [["transfer-encoding"], ["content-length"]]


async def test_a_reset_within_a_body_is_an_error():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
        await writer.drain()
        writer.transport.abort()

    async with server(talk) as port:
        with pytest.raises(ConnectionBroken):
            await ask(port)


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nslow"])
async def test_a_slow_response_times_out(part: bytes):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(part)
        await asyncio.sleep(3600)

    async with server(talk) as port:
        with pytest.raises(ResponseTimeout):
            await ask(port, 0.3)


async def test_a_response_before_the_request_was_read_counts_and_ends_the_connection():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)

    body = bytes(32 << 20)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with server(talk) as port:
        client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
        for _ in range(2):
            assert (await client.exchange(head, body, 60)).status == 413
        await client.close()
    assert connections == 2


async def test_connections_are_reused():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(OK)

    async with server(talk) as port:
        client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
        for _ in range(20):
            assert (await client.exchange(HEAD, b"body", 60)).body == b"ok"
        await client.close()
    assert connections == 1


async def test_connection_close_is_respected():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)

    async with server(talk) as port:
        client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
        for _ in range(3):
            assert (await client.exchange(HEAD, b"body", 60)).status == 200
        await client.close()
    assert connections == 3


async def test_a_stale_connection_is_replaced_within_the_same_attempt():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)  # the second request comes, and the connection ends without an answer

    async with server(talk) as port:
        client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
        for _ in range(3):
            assert (await client.exchange(HEAD, b"body", 60)).body == b"ok"
        await client.close()
    assert connections == 3


async def test_an_unexpected_second_response_ends_the_connection():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK + b"HTTP/1.1 500 Smuggled\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)

    async with server(talk) as port:
        client = HttpClient(Url.parse(f"http://127.0.0.1:{port}/"), GuardedResolver(LOOPBACK))
        for _ in range(2):
            assert (await client.exchange(HEAD, b"body", 60)).status == 200
        await client.close()
    assert connections == 2


async def test_a_closed_port_is_a_failed_connect():
    with closed_port() as port, pytest.raises(ConnectFailed):
        await ask(port)


def test_the_client_works_on_uvloop():
    async def exchange() -> None:
        async with server(saying(OK)) as port:
            assert (await ask(port)).body == b"ok"
        with closed_port() as port, pytest.raises(ConnectFailed):
            await ask(port)
        async with server(saying(b"HTTP/1.1 200 OK\r\n\r\n", b"until the end")) as port:
            assert (await ask(port)).body == b"until the end"
        async with server(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")) as port:
            with pytest.raises(ConnectionBroken):
                await ask(port)
        async with server(saying(b"noise")) as port:
            with pytest.raises(InvalidResponse):
                await ask(port)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(exchange())
