"""The HTTP client against servers that behave, and against those that do not."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from deadletter.workers.http import Client, Target
from deadletter.workers.http.addresses import Guard
from deadletter.workers.http.answers import BODY_LIMIT
from deadletter.workers.http.errors import (
    BadAnswer,
    Broken,
    HttpError,
    TargetForbidden,
    TargetUnresolvable,
    TimedOut,
    TlsFault,
    Unreachable,
)
from deadletter.workers.http.tls import context

LOOPBACK = ("127.0.0.0/8", "::1/128")
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A raw server: `talk` is called for each connection."""
    running: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.close()
        running.discard(task)

    listening = await asyncio.start_server(visit, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tuple(running):
            task.cancel()


async def read_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(4)


def saying(*parts: bytes, forever: bool = False) -> Talk:
    """Answers every request on a connection with these parts, then closes, or goes on for ever."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        while forever:
            writer.write(parts[-1])
            await writer.drain()

    return talk


async def ask(port: int, seconds: float = 60.0):
    client = Client(Target.parse(f"http://127.0.0.1:{port}/"), Guard(LOOPBACK))
    try:
        return await client.exchange(HEAD, b"body", seconds)
    finally:
        await client.close()


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
async def test_every_shape_of_an_answer(parts: list[bytes], status: int, body: bytes):
    async with server(saying(*parts)) as port:
        answer = await ask(port)
    assert (answer.status, answer.body, answer.is_cut) == (status, body, False)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([b""], Broken),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], Broken),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"], Broken),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha"], Broken),
        ([b"SSH-2.0-OpenSSH\r\n"], BadAnswer),
        ([b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nnoise"], BadAnswer),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"], BadAnswer),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 50, BadAnswer),
    ],
)
async def test_an_answer_that_is_none(parts: list[bytes], error: type[HttpError]):
    async with server(saying(*parts)) as port:
        with pytest.raises(error):
            await ask(port)


async def test_an_endless_body_is_cut_and_taken():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with server(saying(head, b"400\r\n" + b"x" * 1024 + b"\r\n", forever=True)) as port:
        answer = await ask(port)
    assert (answer.status, len(answer.body), answer.is_cut) == (200, BODY_LIMIT, True)


async def test_an_endless_head_is_refused():
    async with server(saying(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"y" * 1000 + b"\r\n", forever=True)) as port:
        with pytest.raises(BadAnswer):
            await ask(port)


async def test_a_reset_in_the_middle_of_a_body():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
        await writer.drain()
        writer.transport.abort()

    async with server(talk) as port:
        with pytest.raises(Broken):
            await ask(port)


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nslow"])
async def test_a_slow_server_runs_out_of_time(part: bytes):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(part)
        await asyncio.sleep(3600)

    async with server(talk) as port:
        with pytest.raises(TimedOut):
            await ask(port, 0.3)


async def test_an_answer_before_the_body_was_read_counts_and_the_connection_is_not_used_again():
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
        client = Client(Target.parse(f"http://127.0.0.1:{port}/"), Guard(LOOPBACK))
        for _ in range(2):
            assert (await client.exchange(head, body, 60)).status == 413
        await client.close()
    assert connections == 2


async def test_connections_are_kept_and_used_again():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(OK)

    async with server(talk) as port:
        client = Client(Target.parse(f"http://127.0.0.1:{port}/"), Guard(LOOPBACK))
        for _ in range(20):
            assert (await client.exchange(HEAD, b"body", 60)).body == b"ok"
        await client.close()
    assert connections == 1


async def test_connection_close_is_obeyed():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)

    async with server(talk) as port:
        client = Client(Target.parse(f"http://127.0.0.1:{port}/"), Guard(LOOPBACK))
        for _ in range(3):
            assert (await client.exchange(HEAD, b"body", 60)).status == 200
        await client.close()
    assert connections == 3


async def test_a_stale_connection_is_replaced_without_an_attempt():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)  # the second request comes, and the connection ends without an answer

    async with server(talk) as port:
        client = Client(Target.parse(f"http://127.0.0.1:{port}/"), Guard(LOOPBACK))
        for _ in range(3):
            assert (await client.exchange(HEAD, b"body", 60)).body == b"ok"
        await client.close()
    assert connections == 3


async def test_a_second_answer_nobody_asked_for_ends_the_connection():
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK + b"HTTP/1.1 500 Smuggled\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)

    async with server(talk) as port:
        client = Client(Target.parse(f"http://127.0.0.1:{port}/"), Guard(LOOPBACK))
        for _ in range(2):
            assert (await client.exchange(HEAD, b"body", 60)).status == 200
        await client.close()
    assert connections == 2


@contextmanager
def nobody() -> Iterator[int]:
    """A port that is taken and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_nobody_listens():
    with nobody() as port, pytest.raises(Unreachable):
        await ask(port)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/", "http://user:secret@host/", "http:///path", "http://h:99999/", "http://a\r\nb/"],
)
def test_only_plain_http_urls_are_targets(url: str):
    with pytest.raises(TargetForbidden) as caught:
        Target.parse(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://svc.ns.svc:8080/a?b=c", "svc.ns.svc:8080", "/a?b=c"),
        ("https://example.test", "example.test", "/"),
        ("http://[2001:db8::1]/", "[2001:db8::1]", "/"),
    ],
)
def test_a_target_is_taken_apart(url: str, authority: str, path: str):
    target = Target.parse(url)
    assert (target.authority, target.path) == (authority, path)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:127.0.0.1]", "0.0.0.0", "[fe80::1]", "localhost"]
)
async def test_forbidden_addresses_get_no_byte(host: str):
    client = Client(Target.parse(f"http://{host}:9/"), Guard(()))
    with pytest.raises(TargetForbidden):
        await client.exchange(HEAD, b"body", 60)


async def test_the_api_server_is_forbidden_unless_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with pytest.raises(TargetForbidden):
        await Guard(()).addresses("10.96.0.1", 443)
    assert await Guard(("10.96.0.0/16",)).addresses("10.96.0.1", 443) == ("10.96.0.1",)


async def test_a_rebinding_name_is_dialled_at_the_address_that_was_checked():
    asked = 0

    async def rebinding(_: str, __: int) -> list[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked == 1 else ["127.0.0.2"]

    async with server(saying(OK)) as port:
        guard = Guard(("127.0.0.1/32",), rebinding)
        client = Client(Target.parse(f"http://rebinding.test:{port}/"), guard)
        assert (await client.exchange(HEAD, b"body", 60)).status == 200
        await client.close()
        with pytest.raises(TargetForbidden):
            await client.exchange(HEAD, b"body", 60)


async def test_one_forbidden_address_among_several_forbids_the_name():
    async def two(_: str, __: int) -> list[str]:
        return ["93.184.216.34", "169.254.169.254"]

    with pytest.raises(TargetForbidden):
        await Guard((), two).addresses("both.test", 80)


async def test_a_name_without_address_is_unresolvable():
    client = Client(Target.parse("http://no-such-host.invalid/"), Guard(()))
    with pytest.raises(TargetUnresolvable):
        await client.exchange(HEAD, b"body", 60)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server certificate for localhost, a client certificate."""
    folder = tmp_path_factory.mktemp("tls")
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
    signed = f"{new} -CA ca.crt -CAkey ca.key"
    for words in (
        f"{new} -keyout ca.key -out ca.crt -subj /CN=ca",
        f"{signed} -keyout tls.key -out tls.crt -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        "-addext basicConstraints=critical,CA:FALSE",
        f"{signed} -keyout client.key -out client.crt -subj /CN=courier -addext basicConstraints=critical,CA:FALSE",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return folder


def server_tls(folder: Path, *, wants_client: bool = False) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    if wants_client:
        made.load_verify_locations(folder / "ca.crt")
        made.verify_mode = ssl.CERT_REQUIRED
    return made


async def ask_tls(port: int, tls: ssl.SSLContext, host: str = "localhost"):
    async def here(_: str, __: int) -> list[str]:
        return ["127.0.0.1"]

    client = Client(Target.parse(f"https://{host}:{port}/"), Guard(LOOPBACK, here), tls)
    try:
        return await client.exchange(HEAD, b"body", 60)
    finally:
        await client.close()


async def test_tls_with_an_authority_and_a_client_certificate(certificates: Path):
    ca, pair = (certificates / "ca.crt").read_bytes(), ("client.crt", "client.key")
    own = context(ca, *((certificates / name).read_bytes() for name in pair))
    async with server(saying(OK), server_tls(certificates, wants_client=True)) as port:
        assert (await ask_tls(port, own)).body == b"ok"


async def test_a_certificate_that_is_not_trusted_is_a_fault_of_the_queue(certificates: Path):
    async with server(saying(OK), server_tls(certificates)) as port:
        with pytest.raises(TlsFault):
            await ask_tls(port, context())


async def test_a_certificate_for_another_name_is_a_fault(certificates: Path):
    ca = (certificates / "ca.crt").read_bytes()
    async with server(saying(OK), server_tls(certificates)) as port:
        with pytest.raises(TlsFault):
            await ask_tls(port, context(ca), "other.test")
        assert (await ask_tls(port, context(ca, verify=False), "other.test")).status == 200


async def test_plain_http_where_tls_is_expected_is_a_fault(certificates: Path):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with server(talk) as port:
        with pytest.raises(TlsFault):
            await ask_tls(port, context())


def test_a_broken_certificate_is_a_fault():
    with pytest.raises(TlsFault):
        context(b"no certificate")
    with pytest.raises(TlsFault):
        context(None, b"no certificate", b"no key")


def test_a_pod_runs_it_on_uvloop():
    async def walk() -> None:
        async with server(saying(OK)) as port:
            assert (await ask(port)).body == b"ok"
        with nobody() as port, pytest.raises(Unreachable):
            await ask(port)
        async with server(saying(b"HTTP/1.1 200 OK\r\n\r\n", b"until the end")) as port:
            assert (await ask(port)).body == b"until the end"
        async with server(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")) as port:
            with pytest.raises(Broken):
                await ask(port)
        async with server(saying(b"noise")) as port:
            with pytest.raises(BadAnswer):
                await ask(port)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(walk())


def test_tls_on_uvloop(certificates: Path):
    async def walk() -> None:
        ca = (certificates / "ca.crt").read_bytes()
        async with server(saying(OK), server_tls(certificates)) as port:
            assert (await ask_tls(port, context(ca))).body == b"ok"
            with pytest.raises(TlsFault):
                await ask_tls(port, context())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(walk())
