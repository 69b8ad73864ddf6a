"""Which URLs and addresses the client calls, and which get no byte."""

import pytest

from deadletter.workers.http import Client, Target
from deadletter.workers.http.addresses import Guard
from deadletter.workers.http.errors import (
    TargetForbidden,
    TargetUnresolvable,
)
from tests.workers.rawservers import HEAD, OK, saying, server


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
