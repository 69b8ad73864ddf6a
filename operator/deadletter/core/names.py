"""Every name we give, made in one place."""

from hashlib import sha256

MAX_NAME_LENGTH = 63
_PRODUCT = "dlq-operator"


def dead_box_name(source: str, group: str, redis: bool = False) -> str:
    """The dead box of a delivered queue that does not name one; on Redis with a hash tag."""
    return f"{{{source}}}.{group}.dlq" if redis else f"{source}.{group}.dlq"


def retry_box_name(dead: str) -> str:
    """Where letters wait for their next attempt."""
    return f"{dead}.retry"


def ledger_name(dead: str) -> str:
    """Where settlements are kept."""
    return f"{dead}.ledger"


def archive_name(dead: str) -> str:
    """Where archived letters lie on Redis."""
    return f"{dead}.archive"


def shorten_name(text: str, longest: int = MAX_NAME_LENGTH) -> str:
    """The text, or its beginning and a digest when it is too long for a name or label."""
    return text if len(text) <= longest else _digested(text, text, longest)


def _digested(text: str, whole: str, longest: int) -> str:
    return f"{text[: longest - 9].rstrip('-._')}-{sha256(whole.encode()).hexdigest()[:8]}"


def child_name(queue: str, suffix: str) -> str:
    """The name of a child object, at most 63 characters; one that was cut or lost its dots carries a digest."""
    whole = f"{queue}-{suffix}"
    return _digested(whole.replace(".", "-"), whole, MAX_NAME_LENGTH) if "." in whole else shorten_name(whole)


def labels(queue: str, component: str) -> dict[str, str]:
    """The labels of every child of a queue."""
    return {
        "app.kubernetes.io/name": _PRODUCT,
        "app.kubernetes.io/instance": shorten_name(queue),
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": _PRODUCT,
        "app.kubernetes.io/part-of": _PRODUCT,
        "deadletter.dev/queue": shorten_name(queue),
    }
