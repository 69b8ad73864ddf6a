"""Redact headers and JSON values of a message before it is shown."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deadletter.core.letters import Message

REDACTED = "[redacted]"


def redact(message: Message, headers: Sequence[str], pointers: Sequence[str]) -> Message:
    """Return the message with the values of these headers (any case) and JSON Pointers redacted.

    With pointers, a value that is not JSON is redacted as a whole, because it cannot be searched.
    """
    hidden = {name.lower() for name in headers}
    shown = tuple(
        (name, REDACTED.encode() if name.lower() in hidden and value is not None else value)
        for name, value in message.headers
    )
    value = _redact_value(message.value, pointers) if pointers and message.value is not None else message.value
    return replace(message, headers=shown, value=value)


def _redact_value(value: bytes, pointers: Sequence[str]) -> bytes:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return REDACTED.encode()
    found = [_redact_member(document, _tokens(pointer)) for pointer in pointers]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() if any(found) else value


def _tokens(pointer: str) -> list[str]:
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _redact_member(document: Any, tokens: list[str]) -> bool:
    """Redact the member that the tokens name; return False if the document has none."""
    *path, last = tokens or [""]
    for token in path:
        document = _descend(document, token)
    if isinstance(document, dict) and last in document:
        document[last] = REDACTED
        return True
    if isinstance(document, list) and last.isascii() and last.isdigit() and int(last) < len(document):
        document[int(last)] = REDACTED
        return True
    return False


def _descend(document: Any, token: str) -> Any:
    if isinstance(document, dict):
        return document.get(token)
    if isinstance(document, list) and token.isascii() and token.isdigit() and int(token) < len(document):
        return document[int(token)]
    return None
