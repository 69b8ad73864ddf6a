"""Derive the names of topics, streams, child objects and labels."""

from hashlib import sha256

MAX_NAME_LENGTH = 63
_PRODUCT = "dlq-operator"


def dead_box_name(source: str, group: str, redis: bool = False) -> str:
    """Return the default dead box of a delivered queue; on Redis it carries a hash tag."""
    return f"{{{source}}}.{group}.dlq" if redis else f"{source}.{group}.dlq"


def retry_box_name(dead: str) -> str:
    """Return the box where letters wait for their next attempt."""
    return f"{dead}.retry"


def ledger_name(dead: str) -> str:
    """Return the box that stores settlements."""
    return f"{dead}.ledger"


def archive_name(dead: str) -> str:
    """Return the Redis key that stores archived letters."""
    return f"{dead}.archive"


def shorten_name(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return the text; if it is too long for a name or label, its beginning and a digest."""
    return text if len(text) <= max_length else _with_digest(text, text, max_length)


def _with_digest(text: str, whole: str, max_length: int) -> str:
    return f"{text[: max_length - 9].rstrip('-._')}-{sha256(whole.encode()).hexdigest()[:8]}"


def child_name(queue: str, suffix: str) -> str:
    """Return the name of a child object, at most 63 characters; with a digest if it was shortened or had dots."""
    whole = f"{queue}-{suffix}"
    return _with_digest(whole.replace(".", "-"), whole, MAX_NAME_LENGTH) if "." in whole else shorten_name(whole)


def labels(queue: str, component: str) -> dict[str, str]:
    """Return the labels of a child object of a queue."""
    return {
        "app.kubernetes.io/name": _PRODUCT,
        "app.kubernetes.io/instance": shorten_name(queue),
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": _PRODUCT,
        "app.kubernetes.io/part-of": _PRODUCT,
        "deadletter.dev/queue": shorten_name(queue),
    }
