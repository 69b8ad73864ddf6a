"""What the driver says, in our words. Replies may quote keys, never payloads: their texts are not passed on."""

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as LateReply

from deadletter.brokers.errors import (
    AuthenticationFailed,
    BoxConflict,
    BoxMissing,
    BoxRefused,
    BrokerError,
    BrokerUnreachable,
    Fenced,
    NotAuthorised,
    NotSupported,
    TooLarge,
)

_BY_WORD: dict[str, tuple[type[BrokerError], str]] = {
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


def translated(error: Exception) -> BrokerError:
    """The same objection as one of ours; the driver's is chained by who raises."""
    if isinstance(error, BrokerError):
        return error
    kind, sentence = _meaning(error)
    return kind(sentence)


def _meaning(error: Exception) -> tuple[type[BrokerError], str]:
    if isinstance(error, ResponseError | NoPermissionError | AuthenticationError | LostConnection):
        found = next((known for word, known in _BY_WORD.items() if _says(error, word)), None)
        if found is not None:
            return found
    if isinstance(error, AuthenticationError):
        return _BY_WORD["WRONGPASS"]
    if isinstance(error, NoPermissionError):
        return _BY_WORD["NOPERM"]
    if isinstance(error, LateReply | TimeoutError):
        return BrokerUnreachable, "Redis does not answer in time"
    if isinstance(error, LostConnection | OSError):
        return BrokerUnreachable, "Redis cannot be reached"
    if isinstance(error, RedisError):
        return BoxRefused, f"Redis refuses: {type(error).__name__}"
    return TooLarge, "the message exceeds what Redis takes"


_DRIVER_TEXTS = {
    "OOM": "command not allowed when used memory",
    "READONLY": "You can't write against a read only",
    "WRONGPASS": "invalid username-password pair",
    "NOAUTH": "Authentication required",
    "LOADING": "Redis is loading the dataset",
    "NOPERM": "has no permissions",
}


def _says(error: Exception, word: str) -> bool:
    """The driver cuts the code off some replies; then the sentence tells."""
    text = str(error)
    return text == word or text.startswith(f"{word} ") or _DRIVER_TEXTS.get(word, "\0") in text
