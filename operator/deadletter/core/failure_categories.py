"""Classify a failure into one of six categories by HTTP status, network error, gRPC code or exception name."""

import re
from functools import lru_cache

from deadletter.core.letters import Category, Failure
from deadletter.core.truncate import truncate

MAX_TYPE_CHARS = 256
MAX_MESSAGE_CHARS = 2_048
MAX_STACK_CHARS = 8_192

_STATUSES = {
    401: Category.Permission,
    403: Category.Permission,
    407: Category.Permission,
    408: Category.Transient,
    425: Category.Transient,
    429: Category.Resource,
    507: Category.Resource,
}
_REJECTED_STATUSES = {400, 405, 406, 411, 412, 413, 414, 415, 416, 417, 422, 428, 431}
_GRPC_CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_GRPC = {
    "CANCELLED": Category.Transient,
    "UNKNOWN": Category.Transient,
    "ABORTED": Category.Transient,
    "INTERNAL": Category.Transient,
    "DEADLINE_EXCEEDED": Category.Network,
    "UNAVAILABLE": Category.Network,
    "RESOURCE_EXHAUSTED": Category.Resource,
    "PERMISSION_DENIED": Category.Permission,
    "UNAUTHENTICATED": Category.Permission,
    "INVALID_ARGUMENT": Category.Validation,
    "FAILED_PRECONDITION": Category.Validation,
    "OUT_OF_RANGE": Category.Validation,
}
# The first pattern that matches an exception's class name (without its package) decides.
_CATEGORY_PATTERNS = (
    (
        Category.Resource,
        r"ratelimit|toomanyrequests|throttl|quota|outofmemory|memoryerror|nospace|disk|capacity|resourceexhausted|bufferfull",
    ),
    (
        Category.Permission,
        r"permission|accessdenied|unauthori[sz]ed|authori[sz]ation|authentication|forbidden|credential|security",
    ),
    (
        Category.Network,
        r"time[d]?_?out|connect|socket|unknownhost|unreachable|broken_?pipe|\bssl|tls|handshake|eof|\bdns|network|"
        r"^io(exception|error)$|nobrokers|leadernotavailable|deadlineexceeded",
    ),
    (
        Category.Validation,
        r"seriali[sz]|validation|invalid|illegalargument|malformed|parse|json|schema|decod|format|converter|"
        r"^(value|type|key|index|unicode\w*|attribute)error$|nullpointer|classcast|constraint|badrequest|"
        r"dataexception|contentpolicy|recordtoolarge|argument(null|outofrange)",
    ),
    (
        Category.Transient,
        r"transient|temporar|retr(y|iable|yable)|unavailable|busy|deadlock|lock|serviceexception|circuit|overload|"
        r"internalserver|badgateway|concurren|optimistic|interrupted",
    ),
)
_COMPILED_PATTERNS = tuple((category, re.compile(pattern)) for category, pattern in _CATEGORY_PATTERNS)


def classify_status(status: int) -> Category:
    """Return the category of an HTTP status that is not a success."""
    if status in _STATUSES:
        return _STATUSES[status]
    if status >= 500:
        return Category.Transient
    return Category.Validation if status in _REJECTED_STATUSES else Category.Permanent


@lru_cache(maxsize=4_096)
def classify_error(error_type: str) -> Category:
    """Return the category of a network error, `Grpc:<code>` or exception name.

    An unknown name is Permanent, because nothing suggests that a retry helps; an empty name is Transient.
    """
    if not error_type:
        return Category.Transient
    if error_type.startswith("Grpc:"):
        return _classify_grpc(error_type[5:])
    name = re.split(r"[.$/:\\]", error_type.partition(": ")[0].strip().rstrip(".:"))[-1].lower()
    return next((category for category, pattern in _COMPILED_PATTERNS if pattern.search(name)), Category.Permanent)


def _classify_grpc(code: str) -> Category:
    number = code.strip()
    if number.isascii() and number.isdigit() and int(number) < len(_GRPC_CODES):
        number = _GRPC_CODES[int(number)]
    return _GRPC.get(number.upper(), Category.Permanent)


def failure_from_status(status: int, message: str = "") -> Failure:
    """Return the failure of an HTTP response; its type is `Http<status>`."""
    return Failure(f"Http{status}", truncate(message, MAX_MESSAGE_CHARS), classify_status(status), status)


def failure_from_error(error_type: str, message: str = "", stack: str = "") -> Failure:
    """Return the failure of a network error or exception, with truncated texts."""
    return Failure(
        truncate(error_type, MAX_TYPE_CHARS),
        truncate(message, MAX_MESSAGE_CHARS),
        classify_error(error_type),
        None,
        truncate(stack, MAX_STACK_CHARS),
    )
