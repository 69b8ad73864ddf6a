"""What the driver says, in our words. Replies may quote keys, never payloads: their texts are not passed on."""

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as LateReply

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

ERROR_BY_CODE: dict[str, tuple[type[BrokerError], str]] = {
    "FENCED": (Fenced, "another settler took over"),
    "NOBOX": (BoxMissing, "the box does not exist; create it first"),
    "NOGROUP": (BoxMissing, "the stream or its consumer group does not exist"),
    "WRONGTYPE": (BoxConflict, "a key of this name holds something else"),
    "OOM": (BoxRefused, "Redis is out of memory (maxmemory)"),
    "READONLY": (BoxRefused, "this Redis is a read-only replica"),
    "MISCONF": (BoxRefused, "Redis cannot persist and refuses writes"),
    "NOREPLICAS": (BoxRefused, "Redis has too few replicas and refuses writes"),
    "LOADING": (BrokerUnreachable, "Redis is loading its dataset"),
    "BUSY": (BrokerUnreachable, "Redis is busy with a script"),
    "MASTERDOWN": (BrokerUnreachable, "the master of this replica is down"),
    "WRONGPASS": (AuthenticationFailed, "Redis refuses user or password"),
    "NOAUTH": (AuthenticationFailed, "Redis wants a password; name it in secretRef"),
    "NOPERM": (NotAuthorised, "the ACL of this user does not allow it"),
    "MOVED": (NotSupported, "this is a Redis Cluster; it is not supported yet"),
    "ASK": (NotSupported, "this is a Redis Cluster; it is not supported yet"),
    "CROSSSLOT": (NotSupported, "this is a Redis Cluster; it is not supported yet"),
}


def translate(error: Exception) -> BrokerError:
    """The same objection as one of ours; the driver's is chained by who raises."""
    for ours in (error, error.__cause__):  # the driver wraps what we object to while it dials
        if isinstance(ours, BrokerError):
            return ours
    kind, sentence = _describe(error)
    return kind(sentence)


def _describe(error: Exception) -> tuple[type[BrokerError], str]:
    text = str(error)
    words = (word for word in ERROR_BY_CODE if text == word or text.startswith(f"{word} "))
    kinds = (word for kind, word in CODE_BY_EXCEPTION if isinstance(error, kind))
    word = next(words, None) or next(kinds, None) or next((w for w, part in CODE_BY_TEXT if part in text), None)
    if word == "NOBOX":  # our own script's word, and the name we gave it
        return BoxMissing, f"{text.partition(' ')[2]}: it does not exist; create it first"
    if word is not None:
        return ERROR_BY_CODE[word]
    if sentence := certificate_problem(error):
        return CertificateRefused, sentence
    if isinstance(error, LateReply | TimeoutError):
        return BrokerUnreachable, "Redis does not answer in time"
    if isinstance(error, LostConnection | OSError):
        return BrokerUnreachable, "Redis cannot be reached"
    return BoxRefused, f"Redis refuses: {type(error).__name__}"


# The driver cuts the code off replies it knows; then the kind of its error tells, or the sentence that is left.
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
