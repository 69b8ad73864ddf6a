"""Which URLs and addresses the HTTP client connects to."""

from collections.abc import Sequence

import pytest

from deadletter.workers.delivery.http.client import HttpClient
from deadletter.workers.delivery.http.errors import TargetForbidden, TargetUnresolvable
from deadletter.workers.delivery.http.resolver import GuardedResolver, Resolver
from deadletter.workers.delivery.http.url import Url
from tests.workers.raw_servers import HEAD, OK, saying, server


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/", "http://user:secret@host/", "http:///path", "http://h:99999/", "http://a\r\nb/"],
)
def test_only_http_urls_without_credentials_are_valid(url: str):
    with pytest.raises(TargetForbidden) as caught:
        Url.parse(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://svc.ns.svc:8080/a?b=c", "svc.ns.svc:8080", "/a?b=c"),
        ("https://example.test", "example.test", "/"),
        ("http://[2001:db8::1]/", "[2001:db8::1]", "/"),
    ],
)
def test_a_url_is_parsed(url: str, authority: str, path: str):
    parsed = Url.parse(url)
    assert (parsed.authority, parsed.path) == (authority, path)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:127.0.0.1]", "0.0.0.0", "[fe80::1]", "localhost"]
)
async def test_forbidden_addresses_are_not_dialled(host: str):
    client = HttpClient(Url.parse(f"http://{host}:9/"), GuardedResolver(()))
    with pytest.raises(TargetForbidden):
        await client.exchange(HEAD, b"body", 60)


API_SERVER = "10.96.0.1"
API_SERVER_FORMS = [
    "10.96.0.1",
    "::ffff:10.96.0.1",
    "::ffff:a60:1",
    "::FFFF:0a60:0001",
    "2002:a60:1::",
    "2002:a60:1::5",
]


def resolver_of(*addresses: str) -> Resolver:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.mark.parametrize("address", API_SERVER_FORMS)
async def test_the_api_server_is_forbidden_however_its_address_is_written(monkeypatch, address: str):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", API_SERVER)
    for guard in (
        GuardedResolver((), resolver_of(address)),
        GuardedResolver(("10.97.0.0/16", "fd00::/8"), resolver_of(address)),
    ):
        with pytest.raises(TargetForbidden):
            await guard.resolve("hidden.test", 443)
    assert await GuardedResolver(("10.96.0.0/16",), resolver_of(address)).resolve("known.test", 443) == (address,)


@pytest.mark.parametrize(
    ("own", "address"),
    [
        ("::ffff:10.96.0.1", "10.96.0.1"),
        ("fd00:10:96::1", "fd00:10:96:0:0::1"),
        ("FD00:10:96::1", "fd00:10:96::1"),
        ("[fd00:10:96::1]", "fd00:10:96::1"),
    ],
)
async def test_the_environment_variable_may_have_the_api_server_in_any_form(monkeypatch, own: str, address: str):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", own)
    with pytest.raises(TargetForbidden):
        await GuardedResolver((), resolver_of(address)).resolve("hidden.test", 443)


@pytest.mark.parametrize("own", ["", "kubernetes.default.svc"])
async def test_an_api_server_without_an_address_forbids_no_other_address(monkeypatch, own: str):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", own)
    found = ("10.96.0.1", "::ffff:10.96.0.1", "fd00:10:96::1")
    assert await GuardedResolver((), resolver_of(*found)).resolve("shop.test", 443) == found


async def test_a_rebinding_host_name_is_dialled_at_the_checked_address():
    calls = 0

    async def rebinding(_: str, __: int) -> list[str]:
        nonlocal calls
        calls += 1
        return ["127.0.0.1"] if calls == 1 else ["127.0.0.2"]

    async with server(saying(OK)) as port:
        guard = GuardedResolver(("127.0.0.1/32",), rebinding)
        client = HttpClient(Url.parse(f"http://rebinding.test:{port}/"), guard)
        assert (await client.exchange(HEAD, b"body", 60)).status == 200
        await client.close()
        with pytest.raises(TargetForbidden):
            await client.exchange(HEAD, b"body", 60)


async def test_one_forbidden_address_among_several_forbids_the_host_name():
    async def two(_: str, __: int) -> list[str]:
        return ["93.184.216.34", "169.254.169.254"]

    with pytest.raises(TargetForbidden):
        await GuardedResolver((), two).resolve("both.test", 80)


async def test_a_host_name_without_an_address_is_unresolvable():
    client = HttpClient(Url.parse("http://no-such-host.invalid/"), GuardedResolver(()))
    with pytest.raises(TargetUnresolvable):
        await client.exchange(HEAD, b"body", 60)
