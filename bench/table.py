"""Write one table of all results: `python -m bench.table` reads `results/*.jsonl`, writes table and plots there."""

import json
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import plots
from tests.bed import binaries, kafka

RESULTS = Path(__file__).with_name("results")
HEAD = (
    "| bench | unit | ours | peer | its value | ratio | goal | met |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)
KEYS = ("bench", "unit", "ours", "peer", "peer_value", "ratio", "goal")
README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- written by make bench -->", "<!-- end -->")
# Names of lines in the README; other lines keep their id.
README_NAMES = {
    "kafka-replay-100": "replay on Kafka, all letters selected",
    "kafka-replay-kcat": "the same, compared with copying only values",
    "kafka-replay-50": "replay on Kafka, half of the letters selected",
    "core-select-one-clause": "selecting a letter by one clause",
    "core-select-three-clauses": "selecting by three clauses",
    "core-select-exists-regex": "selecting by a list search and a regular expression",
    "courier-kafka": "courier on Kafka",
    "courier-kafka-uvloop": "courier on Kafka, peer with the same event loop",
    "courier-kafka-cpu": "courier on Kafka, CPU per delivery",
    "courier-kafka-p99": "courier on Kafka, 99th percentile of a delivery",
    "courier-kafka-failing": "courier on Kafka while 1 in 100 messages is buried",
    "courier-redis": "courier on Redis",
    "courier-redis-uvloop": "courier on Redis, peer with the same event loop",
    "courier-redis-cpu": "courier on Redis, CPU per delivery",
    "courier-redis-p99": "courier on Redis, 99th percentile of a delivery",
    "courier-redis-failing": "courier on Redis while 1 in 100 messages is buried",
    "redis-replay": "replay on Redis",
    "replay-job-1000000": "Replay of a million letters as a Job",
    "replay-job-memory": "memory of that Replay's pod",
    "replay-process": "replay in one process",
    "replay-preview": "preview (DryRun) in one process",
    "soak-messages": "messages of one hour, delivered or buried",
}
LIBRARIES = ("aiokafka", "redis", "kopf", "kubernetes", "pydantic", "uvloop")


def cell(value: object) -> str:
    if isinstance(value, int | float):
        return plots.number(value)
    return str(value).replace("|", "\\|")


def verdict(row: dict[str, Any], page: str) -> str:
    """Return "yes", or "no" with a link to the reason. A test checks that each missed goal has such a heading."""
    return "yes" if row["met"] else f"**no**: [why]({page}#{row['bench']})"


def processor() -> str:
    """Return the name of the processor."""
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def machine() -> dict[str, str]:
    """Describe the machine and the versions of what was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{os.cpu_count()} cores, {processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "kubernetes": binaries.version("kube-apiserver"),
        "kafka": kafka.version(),
        **{f"python library {name}": metadata.version(name) for name in LIBRARIES},
    }


def parts() -> dict[str, list[dict[str, Any]]]:
    """Return the lines of every benchmark that was measured."""
    files = sorted(RESULTS.glob("*.jsonl"))
    return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


def table(found: dict[str, list[dict[str, Any]]], where: dict[str, str]) -> str:
    """Return the page with all results."""
    rows = [row for lines in found.values() for row in lines]
    met = sum(bool(row["met"]) for row in rows)
    text = [
        "# All benchmarks", "",
        f'{met} of {len(rows)} goals met. `ratio` is always "higher is better". '
        "[README.md](README.md) explains what is measured and why a goal was missed.", "",
        HEAD, *(f"| {' | '.join(cell(row[key]) for key in KEYS)} | {verdict(row, 'README.md')} |" for row in rows), "",
        "| measured on | |\n| --- | --- |", *(f"| {name} | {value} |" for name, value in where.items()), "",
        *(f"![Results of {part} as times their goal]({part}.png)" for part in found), "",
    ]  # fmt: skip
    return "\n".join(text)


def readme_part(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the part for the README: how many goals are met, and every line that compares with another program."""
    rows = [row for lines in found.values() for row in lines]
    met = sum(bool(row["met"]) for row in rows)
    compared = [row for row in rows if row["peer"] != "bound"]
    head = "| | ours | compared with | ratio | goal | met |\n| --- | --- | --- | --- | --- | --- |"
    text = [
        f"| {README_NAMES.get(row['bench'], row['bench'])} | {cell(row['ours'])} {row['unit']} |"
        f" {cell(row['peer'])}: {cell(row['peer_value'])} |"
        f" {cell(row['ratio'])} | {cell(row['goal'])} | {verdict(row, 'bench/results/README.md')} |"
        for row in compared
    ]
    return "\n".join(
        [f"{met} of {len(rows)} goals met, on {os.cpu_count()} cores shared by brokers and programs.", "", head, *text]
    )


def write_into_readme(text: str) -> None:
    """Replace the part of the README between the marks."""
    before, mark, rest = README.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    README.write_text(f"{before}{mark}\n{text}\n{end}{after}")


def main() -> int:
    found, where = parts(), machine()
    write_into_readme(readme_part(found))
    (RESULTS / "table.md").write_text(table(found, where))
    (RESULTS / "table.json").write_text(json.dumps({"machine": where, "results": found}, indent=1) + "\n")
    for part, rows in found.items():
        plots.draw(part, rows, RESULTS)
    rows = [row for lines in found.values() for row in lines]
    print(
        f"{sum(bool(row['met']) for row in rows)} of {len(rows)} goals met; see {RESULTS / 'table.md'}", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
