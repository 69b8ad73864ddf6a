"""Measure the pure core against its limits: envelopes, verdicts, fingerprints, selection, letter index."""

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import process_time

from cel_expr_python import cel

from bench.lines import bound, interleaved, line, progress
from deadletter.core.cel import Predicate
from deadletter.core.dialects.reader import read_envelope
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letter_index import LetterIndex
from deadletter.core.letters import Failure, Letter
from deadletter.core.policy import DEFAULT_POLICY, decide
from tests.core.fixtures import SAMPLES
from tests.core.letters import NOW, letter

RUNS = 7
SELECTIONS = {
    "one-clause": "attempts < 5",
    "three-clauses": 'attempts < 5 && error.type == "Timeout" && origin.partition == 0',
    "exists-regex": 'payload.items.exists(i, i.n > 3) && error.message.matches("^a.*z$") && age < duration("1h")',
}


def microseconds(work: Callable[[], object], count: int) -> Callable[[], float]:
    """Return a function that measures the CPU time of one call in microseconds, averaged over `count` calls."""

    def timed() -> float:
        start = process_time()
        for _ in range(count):
            work()
        return (process_time() - start) / count * 1e6

    return timed


def envelopes() -> bool:
    """Detect and read envelopes of all dialects, mixed."""
    letters = [(sample.message, sample.place) for sample in SAMPLES if not sample.pinned]

    def read_all() -> None:
        for message, place in letters:
            read_envelope(message, place, read_values=True)

    (took,) = interleaved(RUNS, microseconds(read_all, 50))
    return bound("core-envelope", "us/letter", took / len(letters), 25)


def verdicts() -> bool:
    """Decide by a policy without rules."""
    failed = letter(3, 503)
    (took,) = interleaved(RUNS, microseconds(lambda: decide(failed, DEFAULT_POLICY, NOW, 0.5), 5_000))
    return bound("core-decide", "us/letter", took, 5)


def fingerprints() -> bool:
    """Fingerprint a stack trace of 2 KiB, new each time and cached."""
    frames = "".join(f"\tat com.acme.billing.Service.step{n}(Service.java:{n})\n" for n in range(40))
    stack = ("com.acme.BillingException: order 17 of customer 'x' was refused\n" + frames)[:2_048]
    fresh = iter(
        [
            Failure(
                "com.acme.BillingException", f"order {n} of 10.0.0.{n % 255}:9092 at {n:x} was refused", stack=stack
            )
            for n in range(RUNS * 2_000 + 1)
        ]
    )
    known = next(fresh)
    new, again = interleaved(
        RUNS, microseconds(lambda: fingerprint(next(fresh)), 2_000), microseconds(lambda: fingerprint(known), 5_000)
    )
    met = bound("core-fingerprint-2kib", "us/letter", new, 20)
    return bound("core-fingerprint-known", "us/letter", again, 2) and met


def selections() -> bool:
    """Evaluate CEL through our Predicate, compared with the bare library given the same values."""
    failed = letter(3, Failure("Timeout", "abcz"), value=b'{"items": [{"n": 1}, {"n": 7}]}')
    met = [_selection(name, source, failed) for name, source in SELECTIONS.items()]
    return all(met)


def _selection(name: str, source: str, failed: Letter) -> bool:
    predicate = Predicate(source)
    variables = predicate.variables(failed, NOW)
    kinds = {"attempts": cel.Type.INT, "age": cel.Type.DURATION, "payload": cel.Type.DYN}
    tables = {
        "error": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
        "origin": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
    }
    bare = cel.NewEnv(variables=kinds | tables).compile(source)
    ours, theirs = interleaved(
        RUNS,
        microseconds(lambda: predicate.matches(failed, NOW), 2_000),
        microseconds(lambda: bare.eval(data=variables).plain_value(), 2_000),
    )
    # The goal 0.667 allows 1.5 times the bare library.
    return line(f"core-select-{name}", "us/letter", ours, "cel-expr-python", theirs, 0.667, lower_is_better=True)


def letter_indexes() -> bool:
    """Index a million letters in a hundred groups, half of them settled at random."""
    random = Random(7)
    groups = random.choices([f"{number:08x}" for number in range(100)], k=1_000_000)
    settled = random.sample(range(1_000_000), 500_000)
    gc.collect()
    before = _resident()
    index = LetterIndex()
    for offset, group in enumerate(groups):
        index.add(offset, group, "Timeout", "Network", NOW + offset)
    index.settle(settled)
    gc.collect()
    grown = (_resident() - before) / (1 << 20)

    def measure_queries() -> float:
        start = process_time()
        results = (index.depth, index.oldest, index.groups())
        took = (process_time() - start) * 1e3
        if results[0] != 500_000 or sum(group.letters for group in results[2]) != 500_000:
            raise AssertionError("the letter index lost letters")
        return took

    met = bound("core-register-1m-questions", "ms", interleaved(RUNS, measure_queries)[0], 5)
    return bound("core-register-1m-memory", "MiB", max(grown, 0.001), 10) and met


def _resident() -> int:
    """Return the resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    """Run every benchmark of the core; return 1 if a goal is missed."""
    met = []
    for work in (letter_indexes, envelopes, verdicts, fingerprints, selections):
        progress(work.__doc__ or "")
        met.append(work())
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
