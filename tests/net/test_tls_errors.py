"""Tests of the messages for rare certificate errors; common ones come from real handshakes in other tests."""

import ssl

import pytest

from deadletter.net.tls_errors import certificate_problem


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def untrusted(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize(("error", "expected"), [
    (untrusted(10), "has expired: renew it"),
    (untrusted(9), "check the clocks"),
    (untrusted(62), "another name"),
    (untrusted(19), "caSecretRef"),
    (alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"), "our certificate, it has expired"),
    (alert("TLSV1_ALERT_UNKNOWN_CA"), "does not trust its authority"),
    (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "requires a client certificate"),
])  # fmt: skip
def test_the_message_names_the_remedy(error: Exception, expected: str) -> None:
    assert expected in certificate_problem(error)


def test_the_cause_is_looked_for_behind_a_drivers_error() -> None:
    raised, drivers = ConnectionError("our own words"), ConnectionError("the driver's own words")
    raised.__cause__, drivers.__context__ = drivers, untrusted(10)
    assert "expired" in certificate_problem(raised)


@pytest.mark.parametrize("error", [None, OSError(), alert("WRONG_VERSION_NUMBER"), ssl.SSLError()])
def test_what_has_nothing_to_do_with_a_certificate_says_nothing(error: Exception | None) -> None:
    assert certificate_problem(error) == ""


def test_a_long_chain_of_errors_ends() -> None:
    first = last = OSError()
    for _ in range(50):
        last.__cause__ = last = OSError()
    last.__cause__ = untrusted(10)
    assert certificate_problem(first) == ""
