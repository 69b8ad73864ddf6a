"""The pure room against its bounds: envelopes, verdicts, fingerprints, selection, register."""

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
from tests.core.making import NOW, letter

RUNS = 7
SELECTIONS = {
    "one-clause": "attempts < 5",
    "three-clauses": 'attempts < 5 && error.type == "Timeout" && origin.partition == 0',
    "exists-regex": 'payload.items.exists(i, i.n > 3) && error.message.matches("^a.*z$") && age < duration("1h")',
}


def micros(work: Callable[[], object], count: int) -> Callable[[], float]:
    """Microseconds of processor time of one call, over so many: nothing here waits for anything."""

    def timed() -> float:
        start = process_time()
        for _ in range(count):
            work()
        return (process_time() - start) / count * 1e6

    return timed


def envelopes() -> bool:
    """Detecting and reading, all dialects mixed."""
    letters = [(sample.message, sample.place) for sample in SAMPLES if not sample.pinned]

    def all_of_them() -> None:
        for message, place in letters:
            read_envelope(message, place, read_values=True)

    (took,) = interleaved(RUNS, micros(all_of_them, 50))
    return bound("core-envelope", "us/letter", took / len(letters), 25)


def verdicts() -> bool:
    """A verdict without rules."""
    failed = letter(3, 503)
    (took,) = interleaved(RUNS, micros(lambda: decide(failed, DEFAULT_POLICY, NOW, 0.5), 5_000))
    return bound("core-decide", "us/letter", took, 5)


def fingerprints() -> bool:
    """A stack trace of 2 KiB, new each time and known already."""
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
        RUNS, micros(lambda: fingerprint(next(fresh)), 2_000), micros(lambda: fingerprint(known), 5_000)
    )
    met = bound("core-fingerprint-2kib", "us/letter", new, 20)
    return bound("core-fingerprint-known", "us/letter", again, 2) and met


def selections() -> bool:
    """CEL through our Predicate against the bare library with the same values ready at hand."""
    failed = letter(3, Failure("Timeout", "abcz"), value=b'{"items": [{"n": 1}, {"n": 7}]}')
    met = [_selection(name, source, failed) for name, source in SELECTIONS.items()]
    return all(met)


def _selection(name: str, source: str, failed: Letter) -> bool:
    predicate = Predicate(source)
    facts = predicate.variables(failed, NOW)
    kinds = {"attempts": cel.Type.INT, "age": cel.Type.DURATION, "payload": cel.Type.DYN}
    tables = {
        "error": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
        "origin": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
    }
    bare = cel.NewEnv(variables=kinds | tables).compile(source)
    ours, theirs = interleaved(
        RUNS,
        micros(lambda: predicate.matches(failed, NOW), 2_000),
        micros(lambda: bare.eval(data=facts).plain_value(), 2_000),
    )
    # Within 1.5 times the bare library.
    return line(f"core-select-{name}", "us/letter", ours, "cel-expr-python", theirs, 0.667, lower_is_better=True)


def registers() -> bool:
    """A million letters in a hundred groups, half of them settled at random."""
    random = Random(7)
    groups = random.choices([f"{number:08x}" for number in range(100)], k=1_000_000)
    settled = random.sample(range(1_000_000), 500_000)
    gc.collect()
    before = _resident()
    register = LetterIndex()
    for offset, group in enumerate(groups):
        register.add(offset, group, "Timeout", "Network", NOW + offset)
    register.settle(settled)
    gc.collect()
    grown = (_resident() - before) / (1 << 20)

    def ask() -> float:
        start = process_time()
        answers = (register.depth, register.oldest, register.groups())
        took = (process_time() - start) * 1e3
        if answers[0] != 500_000 or sum(group.letters for group in answers[2]) != 500_000:
            raise AssertionError("the register lost letters")
        return took

    met = bound("core-register-1m-questions", "ms", interleaved(RUNS, ask)[0], 5)
    return bound("core-register-1m-memory", "MiB", max(grown, 0.001), 10) and met


def _resident() -> int:
    """Bytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    """Every benchmark of the core; 1 when a goal is missed."""
    met = []
    for work in (registers, envelopes, verdicts, fingerprints, selections):
        progress(work.__doc__ or "")
        met.append(work())
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
