"""Print one JSON line per result to standard output, and progress to standard error.

In every line a higher `ratio` is better. If the result is compared with a limit, the peer is called `bound`.
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
    """Print one result and return True if its goal is met; the table does not show `details`."""
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
    """Print a result that must stay below a limit; return True if it does."""
    return line(bench, unit, ours, "bound", limit, lower_is_better=True)


def versus(bench: str, unit: str, ours: float, peer: str, peer_value: float, goal: float = 1.0) -> bool:
    """Print a rate compared with the rate of a peer; return True if the goal is met."""
    return line(bench, unit, ours, peer, peer_value, goal)


def progress(text: str) -> None:
    """Print a progress message; standard output is reserved for results."""
    print(text, file=sys.stderr, flush=True)


def interleaved(runs: int, *works: Callable[[], float]) -> list[float]:
    """Return the median result of each work; the works take turns, so that a slow minute affects all of them."""
    results: list[list[float]] = [[] for _ in works]
    for _ in range(runs):
        for result, work in zip(results, works, strict=True):
            result.append(work())
    return [median(result) for result in results]
