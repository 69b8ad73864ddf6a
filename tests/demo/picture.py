"""The dashboard's own queries, plotted from what a real Prometheus saw of a demo; `python -m tests.demo picture`."""

import json
import re
from pathlib import Path
from typing import Any

from tests.bed import places
from tests.demo.watching import Prometheus

DASHBOARD = places.REPOSITORY / "charts" / "dlq-operator" / "files" / "dashboard.json"
PICTURE = places.REPOSITORY / "docs" / "pictures" / "dashboard.png"
SHOWN = (
    "Depth", "Age of the oldest letter", "Failure groups",
    "Delivery attempts", "Waiting in retry boxes, circuits", "Replays",
)  # fmt: skip
# A story of a minute is told in shorter steps than a day of operation.
WINDOW = "10s"


def panels() -> dict[str, list[dict[str, Any]]]:
    """The panels of the dashboard that are drawn over time, with their queries."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"]: panel["targets"] for panel in found}


def asked(query: str, namespace: str) -> str:
    """A query as Grafana would send it, for one namespace."""
    return query.replace("$namespace", namespace).replace("$queue", ".*").replace("[5m]", f"[{WINDOW}]")


def legend(pattern: str, labels: dict[str, str]) -> str:
    """The name of a series; the namespace is the same everywhere and left out."""
    named = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), pattern)
    return named.split("/", 1)[-1].strip()


def plot(seen: Prometheus, namespace: str, path: Path = PICTURE) -> None:
    """Six panels in two rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True})
    mpl.rcParams.update({"grid.color": "#e5e7eb", "axes.edgecolor": "#9ca3af", "lines.linewidth": 1.6})
    figure, axes = plt.subplots(2, 3, figsize=(11, 5), sharex=True)
    known = panels()
    for axis, title in zip(axes.flat, SHOWN, strict=True):
        axis.set_title(title, loc="left", fontweight="bold")
        _draw(axis, seen, known[title], namespace)
    for axis in axes[1]:
        axis.set_xlabel("seconds")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})


def _draw(axis: Any, seen: Prometheus, targets: list[dict[str, Any]], namespace: str) -> None:
    for target in targets:
        for series in seen.over_time(asked(target["expr"], namespace)):
            times = [float(at) - seen.begun for at, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            if any(values):
                axis.plot(times, values, label=legend(target["legendFormat"], series["metric"]))
    axis.set_ylim(bottom=0)
    if axis.get_lines():
        axis.legend(frameon=False, fontsize=7)
