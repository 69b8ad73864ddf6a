"""One JSON line per result, on standard output; progress goes to standard error.

`ratio` is always "higher is better". Against a bound the peer is called `bound`.
"""

import json
import sys
from collections.abc import Callable
from statistics import median


def line(
    bench: str,
    unit: str,
    ours: float,
    peer: str,
    peer_value: float,
    goal: float = 1.0,
    lower_is_better: bool = False,
    **details: object,
) -> bool:
    """Print one result and say whether its goal is met; `details` are kept with it and not shown in the table."""
    ratio = (peer_value / ours if lower_is_better else ours / peer_value) if ours and peer_value else 0.0
    result = {
        "bench": bench,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": peer,
        "peer_value": round(peer_value, 3),
        "ratio": round(ratio, 3),
        "goal": goal,
        "met": ratio >= goal,
        **details,
    }
    print(json.dumps(result), flush=True)
    return ratio >= goal


def bound(bench: str, unit: str, ours: float, limit: float) -> bool:
    """A result that must stay under a limit."""
    return line(bench, unit, ours, "bound", limit, lower_is_better=True)


def versus(bench: str, unit: str, ours: float, peer: str, peer_value: float, goal: float = 1.0) -> bool:
    """A rate, the higher the better, beside a peer's."""
    return line(bench, unit, ours, peer, peer_value, goal)


def progress(text: str) -> None:
    """Say what is going on, without disturbing the results."""
    print(text, file=sys.stderr, flush=True)


def interleaved(runs: int, *works: Callable[[], float]) -> list[float]:
    """The median of each work's results; the works take turns, so that a slow minute hits all of them."""
    results: list[list[float]] = [[] for _ in works]
    for _ in range(runs):
        for result, work in zip(results, works, strict=True):
            result.append(work())
    return [median(result) for result in results]
