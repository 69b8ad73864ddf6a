"""One table of all results: `python -m bench.table` reads `results/*.jsonl` and writes table, JSON and plots there."""

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
# What the README calls the lines it quotes; any other by its own name.
WORDS = {
    "kafka-replay-100": "replay on Kafka, every letter chosen",
    "kafka-replay-kcat": "the same, beside copying bare values",
    "kafka-replay-50": "replay on Kafka, half of the letters chosen",
    "core-select-one-clause": "choosing a letter by one clause",
    "core-select-three-clauses": "by three clauses",
    "core-select-exists-regex": "by a search in a list and a regular expression",
    "courier-kafka": "courier on Kafka",
    "courier-kafka-uvloop": "the same, beside the faster event loop",
    "courier-kafka-cpu": "its CPU a delivery",
    "courier-kafka-p99": "its added latency, 99 of 100 deliveries",
    "courier-kafka-failing": "its rate while one message in 100 dies",
    "courier-redis": "courier on Redis",
    "courier-redis-uvloop": "the same, beside the faster event loop",
    "courier-redis-cpu": "its CPU a delivery",
    "courier-redis-p99": "its added latency, 99 of 100 deliveries",
    "courier-redis-failing": "its rate while one message in 100 dies",
    "redis-replay": "replay on Redis",
    "soak-messages": "an hour's messages, delivered or buried",
}
LIBRARIES = ("aiokafka", "redis", "kopf", "kubernetes", "pydantic", "uvloop")


def cell(value: object) -> str:
    if isinstance(value, int | float):
        return plots.number(value)
    return str(value).replace("|", "\\|")


def verdict(row: dict[str, Any], page: str) -> str:
    """Met; or not, with a link to why. A test wants that heading, so that no miss goes without its reason."""
    return "yes" if row["met"] else f"**no**: [why]({page}#{row['bench']})"


def processor() -> str:
    """What the machine calls its processor."""
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def machine() -> dict[str, str]:
    """Where it was measured, and with what."""
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
    """The lines of every part that was measured."""
    files = sorted(RESULTS.glob("*.jsonl"))
    return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


def table(found: dict[str, list[dict[str, Any]]], where: dict[str, str]) -> str:
    """The page with all of it."""
    rows = [row for lines in found.values() for row in lines]
    met = sum(bool(row["met"]) for row in rows)
    said = [
        "# All benchmarks", "",
        f'{met} of {len(rows)} goals met. `ratio` is always "higher is better". '
        "What the figures stand for, and why one was missed, stands in [README.md](README.md).", "",
        HEAD, *(f"| {' | '.join(cell(row[key]) for key in KEYS)} | {verdict(row, 'README.md')} |" for row in rows), "",
        "| measured on | |\n| --- | --- |", *(f"| {name} | {value} |" for name, value in where.items()), "",
        *(f"![Results of {part} as times their goal]({part}.png)" for part in found), "",
    ]  # fmt: skip
    return "\n".join(said)


def quoted(found: dict[str, list[dict[str, Any]]]) -> str:
    """What the README says of it: the count, and every line that is measured beside another program."""
    rows = [row for lines in found.values() for row in lines]
    met = sum(bool(row["met"]) for row in rows)
    beside = [row for row in rows if row["peer"] != "bound"]
    head = "| | ours | beside | ratio | goal | met |\n| --- | --- | --- | --- | --- | --- |"
    said = [
        f"| {WORDS.get(row['bench'], row['bench'])} | {cell(row['ours'])} {row['unit']} |"
        f" {cell(row['peer'])}: {cell(row['peer_value'])} |"
        f" {cell(row['ratio'])} | {cell(row['goal'])} | {verdict(row, 'bench/results/README.md')} |"
        for row in beside
    ]
    return "\n".join(
        [f"{met} of {len(rows)} goals met, on {os.cpu_count()} cores that brokers and programs share.", "", head, *said]
    )


def quote(text: str) -> None:
    """Write it into the README, between its marks."""
    before, mark, rest = README.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    README.write_text(f"{before}{mark}\n{text}\n{end}{after}")


def main() -> int:
    found, where = parts(), machine()
    quote(quoted(found))
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
