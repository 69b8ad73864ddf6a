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


def test_a_certificate_error_is_found_behind_a_driver_error() -> None:
    raised, of_driver = ConnectionError("translated"), ConnectionError("of the driver")
    raised.__cause__, of_driver.__context__ = of_driver, untrusted(10)
    assert "expired" in certificate_problem(raised)


@pytest.mark.parametrize("error", [None, OSError(), alert("WRONG_VERSION_NUMBER"), ssl.SSLError()])
def test_other_errors_have_no_certificate_problem(error: Exception | None) -> None:
    assert certificate_problem(error) == ""


def test_the_depth_of_the_search_is_bounded() -> None:
    first = last = OSError()
    for _ in range(50):
        last.__cause__ = last = OSError()
    last.__cause__ = untrusted(10)
    assert certificate_problem(first) == ""
