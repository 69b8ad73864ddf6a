"""Translate errors of the Redis driver. Replies may quote keys but no payload; their texts are not passed on."""

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as DriverConnectionError
from redis.exceptions import TimeoutError as DriverTimeoutError

from deadletter.brokers.errors import (
    AuthenticationFailed,
    BoxConflict,
    BoxMissing,
    BoxRefused,
    BrokerError,
    BrokerUnreachable,
    CertificateRefused,
    Fenced,
    NotAuthorised,
    NotSupported,
)
from deadletter.net.tls_errors import certificate_problem

_CLUSTER = (NotSupported, "this server is a Redis Cluster, which is not supported yet; use a standalone Redis")
ERROR_BY_CODE: dict[str, tuple[type[BrokerError], str]] = {
    "FENCED": (Fenced, "another writer has taken over"),
    "NOBOX": (BoxMissing, "the stream does not exist; create it first"),
    "NOGROUP": (BoxMissing, "the stream or its consumer group does not exist"),
    "WRONGTYPE": (BoxConflict, "a key of this name holds another type of value"),
    "OOM": (BoxRefused, "Redis is out of memory (maxmemory)"),
    "READONLY": (BoxRefused, "this Redis is a read-only replica"),
    "MISCONF": (BoxRefused, "Redis cannot persist and refuses writes"),
    "NOREPLICAS": (BoxRefused, "Redis has too few replicas and refuses writes"),
    "LOADING": (BrokerUnreachable, "Redis is loading its dataset"),
    "BUSY": (BrokerUnreachable, "Redis is busy with a script"),
    "MASTERDOWN": (BrokerUnreachable, "the master of this replica is down"),
    "UNBLOCKED": (BrokerUnreachable, "this Redis has become a replica"),
    "WRONGPASS": (AuthenticationFailed, "Redis refuses the user name or password; correct the Secret of secretRef"),
    "NOAUTH": (AuthenticationFailed, "Redis requires a password; name its Secret in secretRef"),
    "NOPERM": (NotAuthorised, "the ACL of this user does not allow the command"),
    "MOVED": _CLUSTER,
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
}
# Replies of a server that is not the primary any more; one that is cut off from its replicas replies NOREPLICAS.
CODES_OF_OLD_PRIMARY = ("READONLY", "NOREPLICAS")
# The driver strips the code from replies it knows; then the exception type tells the code, or a part of the text.
CODE_BY_EXCEPTION: tuple[tuple[type[RedisError], str], ...] = (
    (AuthenticationError, "WRONGPASS"),
    (NoPermissionError, "NOPERM"),
    (OutOfMemoryError, "OOM"),
    (ReadOnlyError, "READONLY"),
    (BusyLoadingError, "LOADING"),
    (MasterDownError, "MASTERDOWN"),
)
CODE_BY_TEXT = (
    ("OOM", "allow-oom flag"),
    ("OOM", "command not allowed when used memory"),
    ("READONLY", "read only replica"),
    ("READONLY", "readonly replica"),
    ("NOPERM", "has no permissions"),
)


def translate(error: Exception) -> BrokerError:
    """Return the broker error for a driver error; the caller chains the driver error to it."""
    for candidate in (error, error.__cause__):  # the driver wraps the broker errors that we raise while it connects
        if isinstance(candidate, BrokerError):
            return candidate
    text = str(error)
    code = _code(error, text)
    error_type, description = _describe(error, text, code)
    translated = error_type(description)
    translated.is_connection_problem |= code in CODES_OF_OLD_PRIMARY
    return translated


def _describe(error: Exception, text: str, code: str | None) -> tuple[type[BrokerError], str]:
    if code == "NOBOX":  # raised by our own scripts, with the name of the stream
        return BoxMissing, f"{text.partition(' ')[2]}: it does not exist; create it first"
    if code is not None:
        return ERROR_BY_CODE[code]
    if problem := certificate_problem(error):
        return CertificateRefused, problem
    if isinstance(error, DriverTimeoutError | TimeoutError):
        return BrokerUnreachable, "Redis does not answer in time"
    if isinstance(error, DriverConnectionError | OSError):
        return BrokerUnreachable, "Redis cannot be reached"
    return BoxRefused, f"Redis refuses the command: {type(error).__name__}"


def _code(error: Exception, text: str) -> str | None:
    by_prefix = (code for code in ERROR_BY_CODE if text == code or text.startswith(f"{code} "))
    by_exception = (code for exception, code in CODE_BY_EXCEPTION if isinstance(error, exception))
    by_text = (code for code, part in CODE_BY_TEXT if part in text)
    return next(by_prefix, None) or next(by_exception, None) or next(by_text, None)
