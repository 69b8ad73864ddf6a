"""`python -m deadletter letters list|show`: the open letters of a dead box, read without consuming any.

In the operator's pod name the queue; its redaction is kept:

    kubectl -n dlq-system exec deploy/dlq-dlq-operator -- python -m deadletter letters list -n shop orders
    kubectl -n dlq-system exec deploy/dlq-dlq-operator -- python -m deadletter letters show -n shop orders 0-1234

In a courier's, replayer's or redriver's pod it knows the box by itself, and the redaction of its queue:

    kubectl exec deploy/<queue>-courier -- python -m deadletter letters list --where 'error.status == 500'

Elsewhere say `--connection file` (a BrokerConnection manifest) and `--dead box`, or `--queue file` (a DeadLetterQueue
manifest: its dialect and its redaction are kept). `show ID` prints the envelope; key, headers and payload only with
`--payload`, redacted as the queue wants. Of a box without a queue only the header `authorization` is hidden.
"""

import argparse
import asyncio
import os
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from time import time
from typing import Any

import orjson
import yaml

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, Offsets
from deadletter.brokers.errors import BrokerError, NotAuthorised
from deadletter.cli.cluster_lookup import find_queue_source
from deadletter.cli.decode import display_offset
from deadletter.cli.source import LetterSource, UsageError, find_source
from deadletter.core import times
from deadletter.core.cel import PredicateError
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Letter, Place, failure_time
from deadletter.core.redaction import redact
from deadletter.core.replay_progress import Span
from deadletter.core.selection import Selection
from deadletter.kube import ApiError

COLUMNS = ("ID", "TIME", "ATTEMPTS", "GROUP", "CATEGORY", "ERROR")


def main(argv: list[str]) -> int:
    """List or show letters; 1 when the box cannot be read or the letter is not there."""
    options = _options().parse_args(argv)
    try:
        return asyncio.run(_serve(options))
    except (OSError, yaml.YAMLError):
        print("a file that was named cannot be read", file=sys.stderr)
    except PredicateError as error:
        print(f"--where: {error}", file=sys.stderr)
    except (UsageError, BrokerError, ApiError) as error:
        print(str(error), file=sys.stderr)
    return 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deadletter letters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    folder = os.environ.get("DLQ_ASSIGNMENT_DIR", "/etc/deadletter")
    shared.add_argument("name", metavar="QUEUE", nargs="?", help="a queue, asked at the API server; with -n")
    shared.add_argument("-n", "--namespace", help="the queue's namespace")
    shared.add_argument("--connection", type=Path, help="a file with a BrokerConnection")
    shared.add_argument("--queue", type=Path, help="a file with a DeadLetterQueue")
    shared.add_argument("--dead", help="the dead box; the queue's when absent")
    shared.add_argument("--assignment", type=Path, default=Path(folder), help="the folder of a worker's assignment")
    shared.add_argument("--secrets", type=Path, default=Path(os.environ.get("DLQ_SECRETS_DIR", "/secrets")))
    shared.add_argument("-o", "--output", choices=("table", "json"), default="table")
    verbs = parser.add_subparsers(dest="verb", required=True)
    several = verbs.add_parser("list", parents=[shared], help="one line a letter")
    several.add_argument("--where", help="CEL over a letter, as in a Replay")
    several.add_argument("--group", help="a fingerprint: letters that died of one cause")
    several.add_argument("--limit", type=_positive, default=100, help="at most so many, the oldest first; 100")
    single = verbs.add_parser("show", parents=[shared], help="all that is known of one letter")
    single.add_argument("id", help="as `list` shows it")
    single.add_argument(
        "--payload", action="store_true", help="with key, headers and value, redacted as the queue wants"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number of letters is 1 or more")
    return int(text)


async def _counter(options: argparse.Namespace) -> LetterSource:
    if options.name is None:
        return find_source(options)
    if options.namespace is None:
        raise UsageError("say -n namespace: a name alone is no queue")
    return await find_queue_source(options.namespace, options.name)


async def _serve(options: argparse.Namespace) -> int:
    counter = await _counter(options)
    if options.verb == "list":
        return await _list(counter, options)
    spotted = span_of_id(options.id, counter.broker.is_redis)
    found = [letter async for letter in _open(counter, Selection(ids=(options.id,)), 1, spotted)]
    if not found:
        print(f"there is no open letter {options.id}", file=sys.stderr)
        return 1
    _print_one(found[0], counter, options)
    return 0


def span_of_id(name: str, redis: bool) -> Span:
    """Where the letter of this id would lie; an empty span when it is no id."""
    first, _, second = name.partition("-")
    if not (first.isdecimal() and second.isdecimal()):
        return Span(0, 0, 0)
    partition, offset = (0, Place.from_entry_id("", name).offset) if redis else (int(first), int(second))
    return Span(partition, offset, offset + 1)


def _common(span: Span, asked: Span | None) -> Span:
    """The part of a partition that is asked for."""
    if asked is None:
        return span
    if asked.partition != span.partition:
        return Span(span.partition, 0, 0)
    return Span(span.partition, max(span.start, asked.start), min(span.end, asked.end))


async def _open(counter: LetterSource, selection: Selection, most: int, asked: Span | None = None) -> AsyncIterator[Letter]:
    """Open letters of the selection, the first `most` of each partition."""
    _ = selection.predicate
    now = int(time() * 1000)
    async with open_broker(counter.broker, counter.secrets, counter.allow) as broker:
        settled = await _settled(counter, broker)
        spans = [_common(span, asked) for span in await broker.window(counter.dead)]
        for span in spans:
            if span.start < span.end:
                left = most
                async with aclosing(_read(counter, broker, span, settled.get(span.partition, ()))) as letters:
                    async for letter in letters:
                        if selection.matches(letter, now):
                            yield letter
                            left -= 1
                        if not left:
                            break


async def _read(counter: LetterSource, broker: Broker, span: Span, settled: Offsets | tuple[()]) -> AsyncGenerator[Letter]:
    """What is open in one partition, in its order."""
    async with aclosing(broker.read(counter.dead, [span])) as batches:
        async for batch in batches:
            for taken in batch:
                if taken.place.offset not in settled:
                    yield read_letter(taken.message, taken.place, *counter.read_options)


async def _settled(counter: LetterSource, broker: Broker) -> Mapping[int, Offsets]:
    try:
        return await broker.settled_offsets(counter.dead, counter.ledger)
    except NotAuthorised:
        if not counter.is_read_only:
            raise
        return {}  # Kafka does not tell who may only read the dead box that there is no ledger


async def _list(counter: LetterSource, options: argparse.Namespace) -> int:
    selection = Selection(where=options.where, fingerprint=options.group)
    found = [letter async for letter in _open(counter, selection, options.limit)]
    rows = [list_fields(letter) for letter in sorted(found, key=failure_time)[: options.limit]]
    if options.output == "json":
        print(orjson.dumps(rows).decode())
    else:
        print(_table(rows))
    return 0


def list_fields(letter: Letter) -> dict[str, Any]:
    """One line of a list."""
    known = letter.envelope
    return {
        "id": letter.place.id,
        "time": times.render(failure_time(letter)),
        "error": {"type": known.failure.type, "message": known.failure.message, "category": known.failure.category},
        "attempts": known.attempts,
        "replays": known.replays,
        "group": fingerprint(known.failure),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [COLUMNS]
    for row in rows:
        error = row["error"]
        text = " ".join(f"{error['type']} {error['message']}".split())[:60]
        lines.append((row["id"], row["time"], str(row["attempts"]), row["group"], str(error["category"]), text))
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def show_fields(letter: Letter) -> dict[str, Any]:
    """All that is known of one letter but the message itself."""
    known = letter.envelope

    def moment(ms: int | None) -> str | None:
        return None if ms is None else times.render(ms)

    origin = {"topic": known.origin.topic, "partition": known.origin.partition, "offset": display_offset(known.origin)}
    return list_fields(letter) | {
        "box": letter.place.box,
        "dialect": known.dialect,
        "confidence": known.confidence,
        "origin": origin,
        "consumerGroup": known.group,
        "status": known.failure.status,
        "firstFailedAt": moment(known.first_failed_at),
        "reason": known.reason,
        "replay": known.replay,
        "size": letter.message.size,
    }


def _print_one(letter: Letter, counter: LetterSource, options: argparse.Namespace) -> None:
    shown = show_fields(letter)
    if options.payload:
        message = redact(letter.message, counter.hidden_headers, counter.hidden_pointers)
        shown["key"] = _readable(message.key)
        shown["headers"] = [[name, _readable(value)] for name, value in message.headers]
        shown["payload"] = _readable(message.value)
    if options.output == "json":
        print(orjson.dumps(shown).decode())
    else:
        print(yaml.safe_dump(orjson.loads(orjson.dumps(shown)), sort_keys=False, allow_unicode=True).rstrip())


def _readable(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
