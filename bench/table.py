"""One table of all results: `python -m bench.table` reads `bench/results/*.jsonl` and writes `table.md` beside them."""

import json
import os
import platform
import sys
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
HEAD = (
    "| bench | unit | ours | peer | its value | ratio | goal | met |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)
KEYS = ("bench", "unit", "ours", "peer", "peer_value", "ratio", "goal", "met")


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    rows = [json.loads(line) for file in sorted(RESULTS.glob("*.jsonl")) for line in file.read_text().splitlines()]
    met = sum(bool(row["met"]) for row in rows)
    lines = [
        "# All benchmarks",
        "",
        f"{met} of {len(rows)} goals met. Python {platform.python_version()}, {os.cpu_count()} cores. "
        "What was missed and why stands in [README.md](README.md).",
        "",
        HEAD,
        *("| " + " | ".join(cell(row.get(key, "")) for key in KEYS) + " |" for row in rows),
        "",
    ]
    (RESULTS / "table.md").write_text("\n".join(lines))
    print(f"{met} of {len(rows)} goals met; see {RESULTS / 'table.md'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
