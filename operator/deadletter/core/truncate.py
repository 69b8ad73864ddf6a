"""Truncate texts to a limit and mark them with an ellipsis."""

ELLIPSIS = "…"


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` characters; a truncated text ends with the ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def truncate_bytes(text: str, limit: int) -> bytes:
    """Return at most `limit` bytes of UTF-8, cut between characters; a truncated text ends with the ellipsis."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw
    ellipsis = ELLIPSIS.encode()
    return raw[: limit - len(ellipsis)].decode("utf-8", "ignore").encode() + ellipsis
