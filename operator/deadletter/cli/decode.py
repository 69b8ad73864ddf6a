"""`python -m deadletter decode`: print the envelope of letters.

Reads letters as JSON lines from standard input and prints one envelope per line. A letter is
`{"topic", "partition", "offset", "timestamp", "key", "value", "headers": [[name, value], ...]}` with Base64 for bytes;
any of them may be null. `dialect`, `origin` and `readValues` (default: true) tell how to read it.
"""

import argparse
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

import orjson

from deadletter.cli.json_lines import convert_lines
from deadletter.core import times
from deadletter.core.dialects.reader import is_pointer, read_envelope
from deadletter.core.dialects.registry import DIALECT_NAMES
from deadletter.core.dialects.strip_headers import strip_headers
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import SEQUENCE_MASK, Envelope, Message, Origin, Place

MALFORMED = "not a letter as a JSON object; bytes must be Base64 and headers [name, value] pairs"


def main(argv: list[str]) -> int:
    """Print the envelopes of the letters of standard input; 1 if a line could not be read."""
    options = _parser().parse_args(argv)
    if options.list:
        print("\n".join(DIALECT_NAMES))
        return 0
    return print_envelopes(sys.stdin.buffer, options.dialect)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deadletter decode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the names of all dialects and exit")
    parser.add_argument(
        "--dialect",
        choices=("Auto", *DIALECT_NAMES),
        default="Auto",
        metavar="DIALECT",
        help="dialect of letters that name none, Auto or one of --list (default: Auto)",
    )
    return parser


def print_envelopes(lines: Iterable[bytes], dialect: str = "Auto") -> int:
    """Print one envelope per line and return the exit code."""
    return convert_lines(lines, lambda line: envelope_fields(line, dialect), MALFORMED)


def envelope_fields(line: bytes, dialect: str = "Auto") -> dict[str, Any]:
    """Return the envelope of one letter as the command prints it."""
    fields = orjson.loads(line)
    message = Message(
        _bytes(fields.get("key")),
        _bytes(fields.get("value")),
        tuple((str(name), _bytes(value)) for name, value in fields.get("headers") or ()),
        int(fields.get("timestamp") or 0),
    )
    place = Place(str(fields.get("topic") or ""), int(fields.get("partition") or 0), int(fields.get("offset") or 0))
    envelope = read_envelope(
        message, place, fields.get("dialect") or dialect, fields.get("readValues", True), fields.get("origin")
    )
    return _fields_of(message, envelope)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


def _time(ms: int | None) -> str | None:
    return None if ms is None else times.render(ms)


def display_offset(origin: Origin) -> int | str | None:
    """Return the offset on Kafka, the entry id on Redis; as a number the id exceeds what JSON writers accept."""
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


def _fields_of(message: Message, envelope: Envelope) -> dict[str, Any]:
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
