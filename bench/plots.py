"""Draw the results of each benchmark as one picture, with a bar for each result and a line for the goal."""

from pathlib import Path
from typing import Any

MET, MISSED = "#15803d", "#b91c1c"
MAX_BAR_RATIO = 3.0  # longer bars are cut: a result 100 times better than its goal would hide all others


def draw(part: str, rows: list[dict[str, Any]], folder: Path) -> Path:
    """Draw the ratios of one benchmark as bars; 1 on the axis is the goal of each line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, axis = plt.subplots(figsize=(8, 0.6 + 0.28 * len(rows)))
    shares = [min(row["ratio"] / row["goal"], MAX_BAR_RATIO) for row in rows]
    colours = [MET if row["met"] else MISSED for row in rows]
    bars = axis.barh([row["bench"] for row in rows], shares, color=colours, height=0.6)
    axis.bar_label(bars, [_label(row) for row in rows], padding=3, fontsize=7)
    axis.axvline(1, color="#475569", linewidth=1)
    axis.set_xlim(0, max(shares) * 1.45)
    axis.set_xlabel("times the goal (the line); higher is better")
    axis.invert_yaxis()
    figure.tight_layout()
    path = folder / f"{part}.png"
    # No date and no version in the metadata: the same results make the same file.
    figure.savefig(path, dpi=90, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)
    return path


def _label(row: dict[str, Any]) -> str:
    peer = "goal" if row["peer"] == "bound" else row["peer"]
    return f"{number(row['ours'])} {row['unit']} ({peer} {number(row['peer_value'])})"


def number(value: float) -> str:
    """Format a number with four digits, or with commas for thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
