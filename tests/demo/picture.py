"""The dashboard's own queries, plotted from what a real Prometheus saw of a demo; `make demo-picture`."""

import io
import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from tests.bed import places
from tests.demo.watching import Prometheus

DASHBOARD = places.REPOSITORY / "charts" / "dlq-operator" / "files" / "dashboard.json"
PICTURE = places.REPOSITORY / "docs" / "pictures" / "dashboard.png"
SHOWN = (
    "Depth", "Age of the oldest letter", "Failure groups",
    "Delivery attempts", "Circuit and waiting retries", "Replays",
)  # fmt: skip
UNITS = {"s": "seconds", "ops": "a second", "short": ""}
# A story of a minute is told in shorter steps than a day of operation.
WINDOW = "10s"
CROWDED = 2.5  # seconds between two chapters whose numbers would touch
BLUE, GREEN, RED, ORANGE, GREY = "#2563eb", "#16a34a", "#dc2626", "#ea580c", "#64748b"
# By a word of the legend, the first that fits.
COLOURS = {
    "alert": RED, "failed": RED, "too-early": RED, "circuit": ORANGE, "mended": GREEN, "delivered": GREEN,
    "preview": GREY,
}  # fmt: skip
DASHES = {"alert": (0, (5, 3)), "matched": (0, (1, 2)), "failedAgain": (0, (4, 2))}
CHAPTER = re.compile(r"^(\d+)\. (.+)$")
LOOKS: dict[str, Any] = {
    "font.size": 8.5, "text.color": "#0f172a", "axes.labelcolor": "#475569", "axes.edgecolor": "#cbd5e1",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#eef2f7", "xtick.color": "#475569", "ytick.color": "#475569", "lines.linewidth": 1.8,
    "figure.facecolor": "#f1f5f9", "axes.facecolor": "#ffffff",
}  # fmt: skip


class Told(io.TextIOBase):
    """Where the telling goes, with the time at which each chapter began."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.chapters: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        """Pass it on; note a chapter."""
        if found := CHAPTER.match(text.strip()):
            self.chapters.append((time.time(), found[1]))
        return self.out.write(text)

    def flush(self) -> None:
        """Pass it on."""
        self.out.flush()

    def isatty(self) -> bool:
        """Is a person watching?"""
        return self.out.isatty()


def panels() -> dict[str, dict[str, Any]]:
    """The panels of the dashboard that are drawn over time."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"]: panel for panel in found if panel["type"] == "timeseries"}


def asked(query: str, namespace: str) -> str:
    """A query as Grafana would send it, for one namespace."""
    return query.replace("$namespace", namespace).replace("$queue", ".*").replace("[5m]", f"[{WINDOW}]")


def legend(pattern: str, labels: dict[str, str]) -> str:
    """The name of a series; the namespace is the same everywhere and left out."""
    named = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), pattern)
    return named.split("/", 1)[-1].strip()


def plot(seen: Prometheus, chapters: list[tuple[float, str]], namespace: str, path: Path = PICTURE) -> None:
    """Six panels in two rows, each with the numbers of the chapters above it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update(LOOKS)
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), sharex=True)
    known = panels()
    begin = chapters[0][0]
    marks = [(at - begin, number) for at, number in chapters]
    for axis, title in zip(axes.flat, SHOWN, strict=True):
        _draw(axis, seen, known[title], namespace, begin)
        axis.set_title(title, loc="left", fontweight="bold", fontsize=9.5, pad=14)
        axis.set_ylabel(UNITS[known[title]["fieldConfig"]["defaults"]["unit"]])
        _mark(axis, marks)
    for axis in axes[1]:
        axis.set_xlabel("seconds")
    figure.tight_layout(h_pad=1.6, w_pad=1.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)


def _draw(axis: Any, seen: Prometheus, panel: dict[str, Any], namespace: str, begin: float) -> None:
    highest = 0.0
    for target in panel["targets"]:
        for series in seen.over_time(asked(target["expr"], namespace)):
            # An earlier telling in the same cluster may still be seen before the first chapter.
            points = [(float(at) - begin, float(value)) for at, value in series["values"] if float(at) >= begin]
            times, values = [at for at, _ in points], [value for _, value in points]
            name = legend(target["legendFormat"], series["metric"])
            # An alert that is hours away would leave nothing of the minute to be seen.
            if any(values) and not (name.endswith("alert") and max(values) > 5 * highest):
                _line(axis, times, values, name)
                highest = max(highest, *values)
    axis.set_ylim(0, max(highest, 1) * 1.15)
    if axis.get_lines():
        axis.legend(fontsize=7.5, handlelength=1.6, borderaxespad=0.3, framealpha=0.9, edgecolor="none")


def _line(axis: Any, times: list[float], values: list[float], name: str) -> None:
    colour = next((found for word, found in COLOURS.items() if word in name), BLUE)
    dashes = next((found for word, found in DASHES.items() if word in name), "solid")
    axis.plot(times, values, label=name, color=colour, linestyle=dashes, drawstyle="steps-post")
    if dashes == "solid":
        axis.fill_between(times, values, step="post", color=colour, alpha=0.08, linewidth=0)


def _mark(axis: Any, marks: list[tuple[float, str]]) -> None:
    for (at, number), (after, _) in pairwise([*marks, (float("inf"), "")]):
        axis.axvline(at, color="#cbd5e1", linewidth=0.8, zorder=0.5)
        side = "right" if after - at < CROWDED else "center"
        axis.text(at, 1.02, number, transform=axis.get_xaxis_transform(), ha=side, fontsize=7, color="#64748b")
    axis.set_xlim(left=-2)
