"""`python -m deadletter decode`: one letter a line as JSON in, its envelope as JSON out. "What is this letter?"

A letter is `{"topic", "partition", "offset", "timestamp", "key", "value", "headers": [[name, value], ...]}` with bytes
in base64 and nulls allowed; `dialect`, `origin` and `readValues` (true when absent) say how to read it.
"""

import argparse
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

import orjson

from deadletter.core import times
from deadletter.core.dialects.reader import is_pointer, read_envelope
from deadletter.core.dialects.registry import DIALECT_NAMES
from deadletter.core.dialects.strip_headers import strip_headers
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import SEQUENCE_MASK, Envelope, Message, Origin, Place

MALFORMED = "not a letter as JSON; bytes are base64, headers are [name, value] pairs"


def main(argv: list[str]) -> int:
    """Decode the letters of standard input; 1 when a line could not be read."""
    options = _options().parse_args(argv)
    if options.list:
        print("\n".join(DIALECT_NAMES))
        return 0
    return print_envelopes(sys.stdin.buffer, options.dialect)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deadletter decode", description="Print the envelope of letters.")
    parser.add_argument("--list", action="store_true", help="print the names of the dialects")
    parser.add_argument(
        "--dialect", choices=("Auto", *DIALECT_NAMES), default="Auto", help="for letters that name none"
    )
    return parser


def print_envelopes(lines: Iterable[bytes], dialect: str = "Auto") -> int:
    """Print an envelope per line; a line that is no letter is told on standard error."""
    failed = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            print(orjson.dumps(envelope_fields(line, dialect)).decode(), flush=True)
        except (ValueError, TypeError, KeyError, AttributeError):
            print(f"line {number}: {MALFORMED}", file=sys.stderr)
            failed = 1
    return failed


def envelope_fields(line: bytes, dialect: str = "Auto") -> dict[str, Any]:
    """The envelope of one letter, as the door prints it."""
    given = orjson.loads(line)
    message = Message(
        _bytes(given.get("key")),
        _bytes(given.get("value")),
        tuple((str(name), _bytes(value)) for name, value in given.get("headers") or ()),
        int(given.get("timestamp") or 0),
    )
    place = Place(str(given.get("topic") or ""), int(given.get("partition") or 0), int(given.get("offset") or 0))
    envelope = read_envelope(
        message, place, given.get("dialect") or dialect, given.get("readValues", True), given.get("origin")
    )
    return _shown(message, envelope)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


def _time(ms: int | None) -> str | None:
    return None if ms is None else times.render(ms)


def display_offset(origin: Origin) -> int | str | None:
    """A number on Kafka; on Redis the entry's id, whose number is larger than JSON's writers take."""
    if origin.offset is None or origin.offset <= SEQUENCE_MASK:
        return origin.offset
    return Place("", 0, origin.offset).id


def _origin(origin: Origin) -> dict[str, Any]:
    return {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": display_offset(origin),
        "timestamp": _time(origin.timestamp),
    }


def _shown(message: Message, envelope: Envelope) -> dict[str, Any]:
    failure = envelope.failure
    return {
        "dialect": envelope.dialect,
        "confidence": envelope.confidence,
        "origin": _origin(envelope.origin),
        "hop": _origin(envelope.hop),
        "group": envelope.group,
        "error": {
            "type": failure.type,
            "message": failure.message,
            "category": failure.category,
            "status": failure.status,
        },
        "attempts": envelope.attempts,
        "replays": envelope.replays,
        "firstFailedAt": _time(envelope.first_failed_at),
        "failedAt": _time(envelope.failed_at),
        "reason": envelope.reason,
        "fingerprint": fingerprint(failure),
        "pointer": is_pointer(message, envelope),
        "replayHeaders": [
            [name, None if value is None else b64encode(value).decode()]
            for name, value in strip_headers(message.headers, envelope.dialect)
        ],
    }
