"""Texts cut to a bound, with a mark where they were cut."""

ELLIPSIS = "…"


def truncate(text: str, limit: int) -> str:
    """At most `limit` characters; a cut text ends with the mark."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def truncate_bytes(text: str, limit: int) -> bytes:
    """UTF-8 of at most `limit` bytes, cut between characters; a cut text ends with the mark."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw
    mark = ELLIPSIS.encode()
    return raw[: limit - len(mark)].decode("utf-8", "ignore").encode() + mark
