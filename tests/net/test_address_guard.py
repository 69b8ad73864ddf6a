"""IP addresses that may be dialled."""

import pytest

from deadletter.net.address_guard import is_dialable


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", True),
        ("192.168.0.1", True),
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("fd00:ec2::254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::a9fe:a9fe", False),
        ("2002:a9fe:a9fe::", False),
        ("::a9fe:a9fe", False),
        ("::ffff:0:a9fe:a9fe", False),
        ("fe80::a9fe:a9fe%1", False),
    ],
)
def test_loopback_and_metadata_addresses_are_forbidden(address: str, expected: bool) -> None:
    assert is_dialable(address) is expected


def test_settings_can_allow_a_network() -> None:
    assert is_dialable("127.0.0.1", ("127.0.0.0/8",))
    assert not is_dialable("127.0.0.1", ("10.0.0.0/8", "::/0"))
