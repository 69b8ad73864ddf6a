"""Plot the queries of the Grafana dashboard with data that Prometheus scraped during a demo; `make demo-picture`."""

import io
import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from tests.bed import places
from tests.demo.prometheus import Prometheus

DASHBOARD = places.REPOSITORY / "charts" / "dlq-operator" / "files" / "dashboard.json"
PICTURE = places.REPOSITORY / "docs" / "pictures" / "dashboard.png"
SHOWN = (
    "Depth", "Age of the oldest letter", "Failure groups",
    "Delivery attempts", "Circuit and waiting retries", "Replays",
)  # fmt: skip
UNITS = {"s": "seconds", "ops": "per second", "short": ""}
RATE_WINDOW = "10s"  # the demo lasts a minute, too short for the 5 minutes of the dashboard
MIN_LABEL_DISTANCE_S = 2.5  # chapters closer than this would have overlapping numbers
BLUE, GREEN, RED, ORANGE, GREY = "#2563eb", "#16a34a", "#dc2626", "#ea580c", "#64748b"
# By a word of the legend; the first match counts.
COLOURS = {
    "alert": RED, "failed": RED, "too-early": RED, "circuit": ORANGE, "fixed": GREEN, "delivered": GREEN,
    "preview": GREY,
}  # fmt: skip
DASHES = {"alert": (0, (5, 3)), "matched": (0, (1, 2)), "failedAgain": (0, (4, 2))}
CHAPTER = re.compile(r"^(\d+)\. (.+)$")
STYLE: dict[str, Any] = {
    "font.size": 8.5, "text.color": "#0f172a", "axes.labelcolor": "#475569", "axes.edgecolor": "#cbd5e1",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#eef2f7", "xtick.color": "#475569", "ytick.color": "#475569", "lines.linewidth": 1.8,
    "figure.facecolor": "#f1f5f9", "axes.facecolor": "#ffffff",
}  # fmt: skip


class ChapterTimes(io.TextIOBase):
    """A text stream that also records when each chapter began."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.chapters: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        """Write the text; record the time if it is the title of a chapter."""
        if found := CHAPTER.match(text.strip()):
            self.chapters.append((time.time(), found[1]))
        return self.out.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.out.flush()

    def isatty(self) -> bool:
        """True if the stream is a terminal."""
        return self.out.isatty()


def panels() -> dict[str, dict[str, Any]]:
    """Return the time series panels of the dashboard by title."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"]: panel for panel in found if panel["type"] == "timeseries"}


def fill_in(query: str, namespace: str) -> str:
    """Return a query as Grafana would send it, for one namespace."""
    return query.replace("$namespace", namespace).replace("$queue", ".*").replace("[5m]", f"[{RATE_WINDOW}]")


def legend(pattern: str, labels: dict[str, str]) -> str:
    """Return the name of a series without the namespace, which is the same everywhere."""
    named = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), pattern)
    return named.split("/", 1)[-1].strip()


def plot(prometheus: Prometheus, chapters: list[tuple[float, str]], namespace: str, path: Path = PICTURE) -> None:
    """Draw six panels in two rows, each with the numbers of the chapters above it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update(STYLE)
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), sharex=True)
    by_title = panels()
    begin = chapters[0][0]
    marks = [(at - begin, number) for at, number in chapters]
    for axis, title in zip(axes.flat, SHOWN, strict=True):
        _draw(axis, prometheus, by_title[title], namespace, begin)
        axis.set_title(title, loc="left", fontweight="bold", fontsize=9.5, pad=14)
        axis.set_ylabel(UNITS[by_title[title]["fieldConfig"]["defaults"]["unit"]])
        _mark(axis, marks)
    for axis in axes[1]:
        axis.set_xlabel("seconds")
    figure.tight_layout(h_pad=1.6, w_pad=1.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)


def _draw(axis: Any, prometheus: Prometheus, panel: dict[str, Any], namespace: str, begin: float) -> None:
    highest = 0.0
    for target in panel["targets"]:
        for series in prometheus.query_range(fill_in(target["expr"], namespace)):
            # Series of an earlier run in the same cluster may precede the first chapter.
            points = [(float(at) - begin, float(value)) for at, value in series["values"] if float(at) >= begin]
            times, values = [at for at, _ in points], [value for _, value in points]
            name = legend(target["legendFormat"], series["metric"])
            # An alert threshold of hours would flatten all other lines.
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
        side = "right" if after - at < MIN_LABEL_DISTANCE_S else "center"
        axis.text(at, 1.02, number, transform=axis.get_xaxis_transform(), ha=side, fontsize=7, color="#64748b")
    axis.set_xlim(left=-2)
