"""Tests of the classification of failures."""

import pytest

from deadletter.core.failure_categories import classify_error, classify_status, failure_from_error, failure_from_status
from deadletter.core.letters import Category, Failure

T, N, R, P, V, X = Category


@pytest.mark.parametrize(
    ("statuses", "category"),
    [
        ((408, 425, 500, 501, 502, 503, 504, 599), T),
        ((429, 507), R),
        ((401, 403, 407), P),
        ((400, 405, 413, 415, 422), V),
        ((301, 302, 404, 409, 410, 418), X),
    ],
)
def test_classifies_http_statuses(statuses, category):
    assert {classify_status(status) for status in statuses} == {category}


@pytest.mark.parametrize(
    ("names", "category"),
    [
        (("Timeout", "ConnectionRefused", "ConnectionReset", "Tls", "Dns"), N),
        (("java.net.SocketTimeoutException", "java.io.IOException", "javax.net.ssl.SSLHandshakeException"), N),
        (("System.Net.Sockets.SocketException", "requests.exceptions.ConnectionError", "BrokenPipeError"), N),
        (("Grpc:UNAVAILABLE", "Grpc:4", "Grpc:14", "java.net.UnknownHostException"), N),
        (("Grpc:8", "java.lang.OutOfMemoryError", "openai.RateLimitError", "TooManyRequestsException"), R),
        (("Grpc:PERMISSION_DENIED", "Grpc: unauthenticated", "PermissionError", "x.AccessDeniedException"), P),
        (("Grpc:3", "Grpc:9", "ValueError", "json.JSONDecodeError", "java.lang.NullPointerException"), V),
        (("org.apache.kafka.common.errors.SerializationException", "builtins.KeyError"), V),
        (("Grpc:10", "Grpc:INTERNAL", "", "x.ServiceUnavailableException", "DeadlockLoserException"), T),
        (("Grpc:5", "Grpc:99", "Grpc:odd", "com.acme.Weird", "java.lang.IllegalStateException: Timeout"), X),
    ],
)
def test_classifies_errors(names, category):
    assert {name: classify_error(name) for name in names} == dict.fromkeys(names, category)


def test_texts_of_failures_are_truncated():
    failure = failure_from_error("x" * 999, "m" * 9_999, "s" * 99_999)
    assert (len(failure.type), len(failure.message), len(failure.stack)) == (256, 2_048, 8_192)
    assert len(failure_from_status(500, "m" * 9_999).message) == 2_048


def test_a_status_gives_the_type():
    assert failure_from_status(503, "busy") == Failure("Http503", "busy", T, 503)
