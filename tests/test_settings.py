"""Settings of the operator that are checked when it starts."""

import pytest

from deadletter.settings import Settings


def test_an_allowed_address_that_is_not_a_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLQ_ALLOW_ADDRESSES", "10.0.0.0/8, fd00::/8,127.0.0.1")
    assert Settings().allow_addresses == ("10.0.0.0/8", "fd00::/8", "127.0.0.1")
    monkeypatch.setenv("DLQ_ALLOW_ADDRESSES", "10.0.0.0/8,kafka.infra.svc")
    with pytest.raises(ValueError, match=r"allow_addresses[\s\S]+kafka\.infra\.svc"):
        Settings()
