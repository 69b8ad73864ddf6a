"""Tests that hostile expressions and payloads neither crash CEL nor exceed time and memory limits."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from deadletter.core.cel import Predicate, PredicateError
from tests.core.letters import letter

MAX_SECONDS, MAX_MIB = 10.0, 600.0

EXPRESSIONS = {
    "parentheses": "(" * 1000 + "true" + ")" * 1000,
    "negations": "!" * 2040 + "true",
    "minus signs": "-" * 2000 + "1==1",
    "nested lists": "[" * 1000 + "1" + "]" * 1000 + "==[]",
    "fewer nested lists": "[" * 300 + "1" + "]" * 300 + "==[]",
    "nested choices": "true?true:" * 190 + "true",
    "conjunctions": "true&&" * 330 + "true",
    "selected fields": "payload" + ".a" * 1000 + "==1",
    "indexes": "payload" + "[0]" * 600 + "==1",
    "nested exists": "[1,2].exists(a," * 8 + "true" + ")" * 8,
    "nested all": "[1].all(a," * 30 + "true" + ")" * 30,
    "nested calls": "size(" * 300 + "'a'" + ")" * 300 + "==1",
    "a long text": "'" + "a" * 2000 + "'==key",
    "nested maps": "{1:" * 400 + "1" + "}" * 400 + "=={}",
    "a long sum": "1" + "+1" * 1000 + "==1",
}


def numbers(count: int) -> bytes:
    return json.dumps(list(range(count))).encode()


PAYLOADS = {
    "two loops": ("payload.all(a, payload.all(b, a<=b || a>b))", numbers(3000)),
    "three loops": ("payload.all(a, payload.all(b, payload.all(c, true)))", numbers(200)),
    "a long loop": ("payload.all(a, a>=0)", numbers(1_000_000)),
    "growing lists": ("payload.map(a, payload.map(b, payload)).size()>0", numbers(1500)),
    "concatenation": ("(key+key+key+key+key).size()>0", b"{}"),
    "a huge pattern": ("key.matches('((((a{30}){30}){30}){10})')", b"{}"),
    "a slow pattern": ("payload.matches('(a+)+$')", json.dumps("a" * 100_000 + "!").encode()),
    "deep lists": ("payload != null", b"[" * 900 + b"]" * 900),
    "deeper lists": ("payload != null", b"[" * 5000 + b"]" * 5000),
    "deep objects": ("payload != null", b'{"a":' * 950 + b"1" + b"}" * 950),
    "a number of 400 digits": ("payload > 1", b"1" * 400),
    "a number of 100,000 digits": ("payload > 1", b"9" * 100_000),
    "an infinite number": ("payload > 1.0", b"1e999"),
    "not a number": ("payload > 1", b"NaN"),
    "more than 64 bits": ("payload.x == 1", b'{"x":18446744073709551615}'),
    "less than 64 bits": ("payload.x == 1", b'{"x":-9223372036854775809}'),
    "half a surrogate": ("payload == ''", b'"\\ud800"'),
    "not UTF-8": ("payload == ''", b'"\xff"'),
    "cut off": ("payload == ''", b'{"a":'),
}
# Expected results; None, the default, means that the evaluation failed.
RESULTS = {"concatenation": True, "a slow pattern": False, "deep lists": True, "deep objects": True} | {
    "more than 64 bits": False
}


def compile_all() -> dict[str, bool]:
    """Return which expressions compile."""
    return {name: _compiles(text) for name, text in EXPRESSIONS.items()}


def _compiles(text: str) -> bool:
    try:
        Predicate(text)
    except PredicateError:
        return False
    return True


def evaluate_all() -> dict[str, bool | None]:
    """Return the result for each payload."""
    return {name: Predicate(text).matches(letter(1, value=value), 0) for name, (text, value) in PAYLOADS.items()}


def run(what: str) -> dict[str, bool | None]:
    """Run in a subprocess, because a crash would end the test run, and to measure memory."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join((str(root / "operator"), str(root)))
    done = subprocess.run(
        [sys.executable, "-m", __name__, what],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads(done.stdout)
    assert report["seconds"] < MAX_SECONDS
    assert report["mib"] < MAX_MIB
    return dict(report["found"])


def test_no_expression_breaks_the_compiler() -> None:
    found = run("compile_all")
    assert found.keys() == EXPRESSIONS.keys()
    assert not found["parentheses"]
    assert found["conjunctions"]


def test_no_payload_breaks_an_evaluation() -> None:
    found = run("evaluate_all")
    assert found == dict.fromkeys(PAYLOADS) | RESULTS


if __name__ == "__main__":
    started = time.process_time()
    result = {"compile_all": compile_all, "evaluate_all": evaluate_all}[sys.argv[1]]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"found": result, "seconds": time.process_time() - started, "mib": peak}))
