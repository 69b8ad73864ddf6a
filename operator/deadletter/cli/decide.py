"""`python -m deadletter decide -f policy.yaml`: failures as JSON lines in, verdicts out. "What would my policy do?"

A failure is `{"error": {"type", "message", "status", "category"}, "attempts", "firstFailedAt", "retryAfter", "asked",
"headers": {}, "key", "origin": {}}`; everything may be absent. `retryAfter` is a duration, `asked` what the service
said by its Dlq-Action header.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from time import time
from typing import Any

import orjson
import yaml

from deadletter.api.retry_policies import RetryPolicySpec
from deadletter.core import durations, times
from deadletter.core.failures import failure_from_error, failure_from_status
from deadletter.core.letters import Category, Envelope, Failure, Letter, Message, Origin, Place
from deadletter.core.policy import Policy, Retry, Verdict, decide, retry_schedule

MALFORMED = "not a failure as JSON; see deadletter decide --help"
MAX_SCHEDULE_ROWS = 100


def main(argv: list[str]) -> int:
    """Judge the failures of standard input by a policy; 1 when something could not be read."""
    options = _options().parse_args(argv)
    try:
        policy = read_policy(Path(options.file).read_text())
        now = times.parse(options.now) if options.now else int(time() * 1_000)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    if options.schedule:
        print(schedule_table(policy))
        return 0
    return print_verdicts(sys.stdin.buffer, policy, now, options.chance)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deadletter decide", description=__doc__)
    parser.add_argument("-f", "--file", required=True, help="a manifest with a RetryPolicy")
    parser.add_argument("--schedule", action="store_true", help="print the table of waits")
    parser.add_argument("--now", help="the time to judge at, ISO-8601; now when absent")
    parser.add_argument("--chance", type=float, default=0.0, help="where in the jitter, from 0 to 1; 0 when absent")
    return parser


def read_policy(text: str) -> Policy:
    """The first RetryPolicy of a manifest; ValueError when there is none or it is refused."""
    for body in yaml.safe_load_all(text):
        if isinstance(body, dict) and body.get("kind") == "RetryPolicy":
            return RetryPolicySpec.model_validate(body.get("spec") or {}).to_policy()
    raise ValueError("there is no RetryPolicy in this file")


def schedule_table(policy: Policy) -> str:
    """The waits between attempts, one a line, with the time passed since the first failure."""
    lines = [f"{'FAILURE':<9}{'WAIT':<14}{'IN ALL':<14}"]
    passed = 0
    for failures, wait in enumerate(retry_schedule(policy, min(policy.max_attempts - 1, MAX_SCHEDULE_ROWS)), 1):
        passed += wait
        lines.append(f"{failures:<9}{durations.render(wait):<14}{durations.render(min(passed, durations.MAX_MS)):<14}")
    end = "Bury" if policy.on_exhausted == "Bury" else "Discard"
    return "\n".join([*(line.rstrip() for line in lines), f"{len(lines):<9}{end}"])


def print_verdicts(lines: Iterable[bytes], policy: Policy, now: int, chance: float) -> int:
    """Print a verdict per line; a line that is no failure is told on standard error."""
    failed = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            print(orjson.dumps(evaluate(orjson.loads(line), policy, now, chance)).decode(), flush=True)
        except (ValueError, TypeError, KeyError, AttributeError):
            print(f"line {number}: {MALFORMED}", file=sys.stderr)
            failed = 1
    return failed


def evaluate(given: dict[str, Any], policy: Policy, now: int, chance: float = 0.0) -> dict[str, Any]:
    """The verdict on one failure, as the door prints it."""
    letter = _letter(given, now)
    wait = given.get("retryAfter")
    retry_after = wait * 1_000 if isinstance(wait, int) else durations.parse(wait) if wait else None
    verdict = decide(letter, policy, now, chance, retry_after, given.get("asked"))
    return {"verdict": type(verdict).__name__, "category": letter.envelope.failure.category} | _told(verdict, now)


def _told(verdict: Verdict, now: int) -> dict[str, Any]:
    if isinstance(verdict, Retry):
        wait = verdict.at - now
        return {"at": times.render(verdict.at), "wait": durations.render(wait), "waitMs": wait}
    return {"reason": verdict.reason}


def _letter(given: dict[str, Any], now: int) -> Letter:
    headers = tuple((str(name), str(value).encode()) for name, value in (given.get("headers") or {}).items())
    first = given.get("firstFailedAt")
    origin = given.get("origin") or {}
    envelope = Envelope(
        origin=Origin(origin.get("topic"), origin.get("partition"), origin.get("offset")),
        attempts=int(given.get("attempts", 1)),
        first_failed_at=times.parse(first) if first else now,
        failed_at=now,
        failure=_failure(given.get("error") or {}),
    )
    key = given.get("key")
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
