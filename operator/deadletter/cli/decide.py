"""`python -m deadletter decide -f policy.yaml`: what a RetryPolicy decides about given failures.

Reads failures as JSON lines from standard input, or from the file of `--failures`, and prints one verdict per line.
With `-f -` the policy comes from standard input, as in `kubectl get rtp/NAME -o yaml | ...`. A failure is
`{"error": {"type", "message", "status", "category"}, "attempts", "firstFailedAt", "retryAfter", "asked", "headers": {},
"key", "origin": {}}`; every field is optional. `retryAfter` is a duration or a number of seconds; `asked` is the value
of the Dlq-Action header of the service's response. With `--schedule` it prints the waits between attempts instead.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
import yaml

from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.cli.json_lines import convert_lines
from deadletter.core import durations, times
from deadletter.core.failure_categories import failure_from_error, failure_from_status
from deadletter.core.letters import Category, Envelope, Failure, Letter, Message, Origin, Place
from deadletter.core.policy import Policy, Retry, Verdict, decide, retry_schedule
from deadletter.wall_clock import now_ms

MALFORMED = "not a failure as a JSON object; see deadletter decide --help for its fields"
MAX_SCHEDULE_ROWS = 100


def main(argv: list[str]) -> int:
    """Print the verdicts of a policy on the given failures; 1 if anything could not be read."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.file == options.failures == "-" and not options.schedule:
        parser.error("-f - takes the policy from standard input: add --schedule, or name a file with --failures")
    try:
        policy = read_policy(sys.stdin.read() if options.file == "-" else Path(options.file).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"--file {options.file}: {error}", file=sys.stderr)
        return 1
    try:
        now = times.parse(options.now) if options.now else now_ms()
    except ValueError as error:
        print(f"--now {options.now}: {error}", file=sys.stderr)
        return 1
    if options.schedule:
        print(schedule_table(policy))
        return 0

    def convert(line: bytes) -> dict[str, Any]:
        return evaluate(orjson.loads(line), policy, now, options.chance)

    if options.failures == "-":
        return convert_lines(sys.stdin.buffer, convert, MALFORMED)
    try:
        with Path(options.failures).open("rb") as failures:
            return convert_lines(failures, convert, MALFORMED)
    except OSError as error:
        print(f"--failures {options.failures}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deadletter decide", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="manifest with a RetryPolicy; - for standard input"
    )
    parser.add_argument(
        "--failures", default="-", metavar="FILE", help="failures as JSON lines (default: -, standard input)"
    )
    parser.add_argument("--schedule", action="store_true", help="print the waits between attempts and exit")
    parser.add_argument("--now", metavar="TIME", help="decide as of this ISO-8601 time (default: the current time)")
    parser.add_argument(
        "--chance", type=float, default=0.0, metavar="FRACTION", help="share of the jitter to add, 0 to 1 (default: 0)"
    )
    return parser


def read_policy(text: str) -> Policy:
    """Return the first RetryPolicy of a manifest; ValueError if there is none or it is invalid."""
    for body in yaml.safe_load_all(text):
        if isinstance(body, dict) and body.get("kind") == "RetryPolicy":
            return RetryPolicySpec.model_validate(body.get("spec") or {}).to_policy()
    raise ValueError("no RetryPolicy in this file; name a manifest with one")


def schedule_table(policy: Policy) -> str:
    """Return the waits between attempts, one per line, with the time since the first failure."""
    lines = [f"{'FAILURE':<9}{'WAIT':<14}{'TOTAL':<14}"]
    total = 0
    for failures, wait in enumerate(retry_schedule(policy, min(policy.max_attempts - 1, MAX_SCHEDULE_ROWS)), 1):
        total += wait
        lines.append(f"{failures:<9}{durations.render(wait):<14}{durations.render(min(total, durations.MAX_MS)):<14}")
    end = "Bury" if policy.on_exhausted == "Bury" else "Discard"
    return "\n".join([*(line.rstrip() for line in lines), f"{len(lines):<9}{end}"])


def evaluate(fields: dict[str, Any], policy: Policy, now: int, chance: float = 0.0) -> dict[str, Any]:
    """Return the verdict on one failure as the command prints it."""
    letter = _letter(fields, now)
    wait = fields.get("retryAfter")
    retry_after = wait * 1_000 if isinstance(wait, int) else durations.parse(wait) if wait else None
    verdict = decide(letter, policy, now, chance, retry_after, fields.get("asked"))
    return {"verdict": type(verdict).__name__, "category": letter.envelope.failure.category} | _verdict_fields(
        verdict, now
    )


def _verdict_fields(verdict: Verdict, now: int) -> dict[str, Any]:
    if isinstance(verdict, Retry):
        wait = verdict.at - now
        return {"at": times.render(verdict.at), "wait": durations.render(wait), "waitMs": wait}
    return {"reason": verdict.reason}


def _letter(fields: dict[str, Any], now: int) -> Letter:
    headers = tuple((str(name), str(value).encode()) for name, value in (fields.get("headers") or {}).items())
    first = fields.get("firstFailedAt")
    origin = fields.get("origin") or {}
    envelope = Envelope(
        origin=Origin(origin.get("topic"), origin.get("partition"), origin.get("offset")),
        attempts=int(fields.get("attempts", 1)),
        first_failed_at=times.parse(first) if first else now,
        failed_at=now,
        failure=_failure(fields.get("error") or {}),
    )
    key = fields.get("key")
    return Letter(Message(None if key is None else str(key).encode(), None, headers, now), Place("", 0, 0), envelope)


def _failure(error: dict[str, Any]) -> Failure:
    status = error.get("status")
    message = str(error.get("message") or "")
    failure = (
        failure_from_error(str(error.get("type") or ""), message)
        if status is None
        else failure_from_status(status, message)
    )
    failure.type = str(error.get("type") or failure.type)
    if error.get("category"):
        failure.category = Category(error["category"])
    return failure
