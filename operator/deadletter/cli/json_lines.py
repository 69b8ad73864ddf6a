"""Convert JSON lines of standard input to JSON lines of standard output."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import orjson


def convert_lines(lines: Iterable[bytes], convert: Callable[[bytes], dict[str, Any]], malformed: str) -> int:
    """Print one JSON object per line, flushed at once, and return the exit code.

    A line that cannot be converted is reported on standard error by its number, without its content, which may be
    secret; the exit code is then 1.
    """
    code = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            print(orjson.dumps(convert(line)).decode(), flush=True)
        except (ValueError, TypeError, KeyError, AttributeError):
            print(f"line {number}: {malformed}", file=sys.stderr)
            code = 1
    return code
