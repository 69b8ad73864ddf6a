"""`python -m deadletter letters list|show`: show the open letters of a dead box without consuming them.

In the operator's pod, name a queue; the letters are redacted by `spec.redaction` of the queue:

    kubectl -n dlq-system exec deploy/dlq-dlq-operator -- python -m deadletter letters list -n shop orders
    kubectl -n dlq-system exec deploy/dlq-dlq-operator -- python -m deadletter letters show -n shop orders 0-1234

In a worker's pod, the box and the redaction are those of the worker's queue:

    kubectl exec deploy/<queue>-courier -- python -m deadletter letters list --where 'error.status == 500'

Elsewhere, use `--connection FILE` (a BrokerConnection manifest) with `--dead BOX` or with `--queue FILE` (a
DeadLetterQueue manifest, whose dialect and redaction are applied). `show ID` prints the envelope; `--payload` adds key,
headers and payload, redacted. Without a queue, only the header `authorization` is redacted.
"""

import argparse
import asyncio
import os
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import yaml

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Offsets
from deadletter.brokers.errors import BrokerError, NotAuthorised
from deadletter.cli.cluster_lookup import find_queue_source
from deadletter.cli.decode import display_offset
from deadletter.cli.letter_source import LetterSource, UsageError, find_source
from deadletter.core import times
from deadletter.core.cel import PredicateError
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Letter, Place, failure_time
from deadletter.core.message_redaction import redact
from deadletter.core.replay_progress import Span
from deadletter.core.selection import Selection
from deadletter.kube import ApiError
from deadletter.wall_clock import now_ms

COLUMNS = ("ID", "TIME", "ATTEMPTS", "GROUP", "CATEGORY", "ERROR")
MAX_ERROR_CHARACTERS = 60


def main(argv: list[str]) -> int:
    """List or show letters; 1 if the box cannot be read or the letter is not open."""
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except PredicateError as error:
        print(f"--where: {error}", file=sys.stderr)
    except (UsageError, BrokerError, ApiError, OSError) as error:
        print(str(error), file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deadletter letters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = _common_options()
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", parents=[common], help="print one line per open letter, the oldest first")
    listing.add_argument(
        "--where", metavar="CEL", help="CEL expression on a letter, as in spec.select.where of a Replay"
    )
    listing.add_argument("--group", metavar="FINGERPRINT", help="only letters of this failure group")
    listing.add_argument("--limit", type=_positive, default=100, metavar="N", help="at most N letters (default: 100)")
    showing = commands.add_parser("show", parents=[common], help="print the envelope of one open letter")
    showing.add_argument("id", metavar="ID", help="id of the letter as `list` prints it, such as 0-1234")
    showing.add_argument("--payload", action="store_true", help="also print key, headers and payload, redacted")
    return parser


def _common_options() -> argparse.ArgumentParser:
    assignment = Path(os.environ.get("DLQ_ASSIGNMENT_DIR", "/etc/deadletter"))
    secrets = Path(os.environ.get("DLQ_SECRETS_DIR", "/secrets"))
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("name", metavar="QUEUE", nargs="?", help="name of a DeadLetterQueue; needs -n")
    common.add_argument("-n", "--namespace", metavar="NAMESPACE", help="namespace of QUEUE")
    common.add_argument("--connection", type=Path, metavar="FILE", help="manifest with a BrokerConnection")
    common.add_argument("--queue", type=Path, metavar="FILE", help="manifest with a DeadLetterQueue; with --connection")
    common.add_argument("--dead", metavar="BOX", help="dead topic or stream to read (default: that of the queue)")
    common.add_argument(
        "--assignment",
        type=Path,
        default=assignment,
        metavar="DIR",
        help=f"directory with a worker's assignment.json and live.json (default: {assignment})",
    )
    common.add_argument(
        "--secrets",
        type=Path,
        default=secrets,
        metavar="DIR",
        help=f"directory with the Secrets of the connection as NAME/KEY files (default: {secrets})",
    )
    common.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="output format (default: table)"
    )
    return common


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return int(text)


async def _find_source(options: argparse.Namespace) -> LetterSource:
    if options.name is None:
        return find_source(options)
    if options.namespace is None:
        raise UsageError(f"QUEUE {options.name} needs its namespace; add -n NAMESPACE")
    return await find_queue_source(options.namespace, options.name)


async def _run(options: argparse.Namespace) -> int:
    source = await _find_source(options)
    if options.command == "list":
        return await _list_letters(source, options)
    span = span_of_id(options.id, source.broker.is_redis)
    found = [letter async for letter in _open_letters(source, Selection(ids=(options.id,)), 1, span)]
    if not found:
        message = f"{source.dead} has no open letter {options.id}; list the open letters with `letters list`"
        print(message, file=sys.stderr)
        return 1
    _print_letter(found[0], source, options)
    return 0


def span_of_id(letter_id: str, redis: bool) -> Span:
    """Return the span that holds only the letter of this id; an empty span if it is not an id."""
    first, _, second = letter_id.partition("-")
    if not (first.isdecimal() and second.isdecimal()):
        return Span(0, 0, 0)
    partition, offset = (0, Place.from_entry_id("", letter_id).offset) if redis else (int(first), int(second))
    return Span(partition, offset, offset + 1)


def _intersect(span: Span, wanted: Span | None) -> Span:
    """Return the part of a partition's span that is wanted."""
    if wanted is None:
        return span
    if wanted.partition != span.partition:
        return Span(span.partition, 0, 0)
    return Span(span.partition, max(span.start, wanted.start), min(span.end, wanted.end))


async def _open_letters(
    source: LetterSource, selection: Selection, limit: int, wanted: Span | None = None
) -> AsyncIterator[Letter]:
    """Yield the open letters of the selection, at most `limit` of each partition."""
    _ = selection.predicate  # compile the expression before the broker is contacted
    now = now_ms()
    async with open_broker(source.broker, source.secrets, source.allow) as broker:
        settled = await _settled_offsets(source, broker)
        for span in [_intersect(one, wanted) for one in await broker.window(source.dead)]:
            if span.start >= span.end:
                continue
            left = limit
            async with aclosing(_read_span(source, broker, span, settled.get(span.partition, ()))) as letters:
                async for letter in letters:
                    if selection.matches(letter, now):
                        yield letter
                        left -= 1
                    if not left:
                        break


async def _read_span(
    source: LetterSource, broker: Broker, span: Span, settled: Offsets | tuple[()]
) -> AsyncGenerator[Letter]:
    """Yield the open letters of a span of one partition, in order."""
    async with aclosing(broker.read(source.dead, [span])) as batches:
        async for batch in batches:
            for stored in batch:
                if stored.place.offset not in settled:
                    yield read_letter(stored.message, stored.place, *source.read_options)


async def _settled_offsets(source: LetterSource, broker: Broker) -> Mapping[int, Offsets]:
    try:
        return await broker.settled_offsets(source.dead, source.ledger)
    except NotAuthorised:
        if not source.is_read_only:
            raise
        # Kafka answers "not authorised" for a topic that does not exist, to a user who may only read the dead topic.
        return {}


async def _list_letters(source: LetterSource, options: argparse.Namespace) -> int:
    selection = Selection(where=options.where, fingerprint=options.group)
    found = [letter async for letter in _open_letters(source, selection, options.limit)]
    rows = [list_fields(letter) for letter in sorted(found, key=failure_time)[: options.limit]]
    print(orjson.dumps(rows).decode() if options.output == "json" else _table(rows))
    return 0


def list_fields(letter: Letter) -> dict[str, Any]:
    """Return what `list` prints of a letter."""
    envelope = letter.envelope
    failure = envelope.failure
    return {
        "id": letter.place.id,
        "time": times.render(failure_time(letter)),
        "error": {"type": failure.type, "message": failure.message, "category": failure.category},
        "attempts": envelope.attempts,
        "replays": envelope.replays,
        "group": fingerprint(failure),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [COLUMNS]
    for row in rows:
        error = row["error"]
        text = " ".join(f"{error['type']} {error['message']}".split())[:MAX_ERROR_CHARACTERS]
        lines.append((row["id"], row["time"], str(row["attempts"]), row["group"], str(error["category"]), text))
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def show_fields(letter: Letter) -> dict[str, Any]:
    """Return what `show` prints of a letter without `--payload`."""
    envelope = letter.envelope
    origin, first_failed_at = envelope.origin, envelope.first_failed_at
    return list_fields(letter) | {
        "box": letter.place.box,
        "dialect": envelope.dialect,
        "confidence": envelope.confidence,
        "origin": {"topic": origin.topic, "partition": origin.partition, "offset": display_offset(origin)},
        "consumerGroup": envelope.group,
        "status": envelope.failure.status,
        "firstFailedAt": None if first_failed_at is None else times.render(first_failed_at),
        "reason": envelope.reason,
        "replay": envelope.replay,
        "size": letter.message.size,
    }


def _print_letter(letter: Letter, source: LetterSource, options: argparse.Namespace) -> None:
    shown = show_fields(letter)
    if options.payload:
        message = redact(letter.message, source.hidden_headers, source.hidden_pointers)
        shown["key"] = _text_or_base64(message.key)
        shown["headers"] = [[name, _text_or_base64(value)] for name, value in message.headers]
        shown["payload"] = _text_or_base64(message.value)
    if options.output == "json":
        print(orjson.dumps(shown).decode())
    else:
        print(yaml.safe_dump(orjson.loads(orjson.dumps(shown)), sort_keys=False, allow_unicode=True).rstrip())


def _text_or_base64(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
