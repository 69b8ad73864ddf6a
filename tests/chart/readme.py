"""The chart's README, written from its schema: `python -m tests.chart.readme`."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.bed import places

CHART = places.REPOSITORY / "charts" / "dlq-operator"
PAGE = CHART / "README.md"
HEAD = """<!-- Written by `python -m tests.chart.readme` from values.schema.json and values.yaml; do not edit. -->
# dlq-operator

Dead letter queues on Kubernetes: Kafka topics and Redis streams as plain resources, replayed exactly once. How to
install, upgrade and remove it stands in [install and operate](../../docs/operations/operate.md).

| value | default | meaning |
| --- | --- | --- |
"""


def leaves(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every value with its place in the schema and its default."""
    for name, node in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if "properties" in node:
            yield from leaves(node, values[name], where)
        elif name != "global":
            yield where, node, values[name]


def every() -> list[tuple[str, dict[str, Any], Any]]:
    """All values of the chart."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    return list(leaves(schema, yaml.safe_load((CHART / "values.yaml").read_text())))


def _text(node: dict[str, Any]) -> str:
    return str(node["description"]).replace("<", "&lt;")


def page() -> str:
    """The whole page."""
    rows = [f"| `{path}` | `{json.dumps(default)}` | {_text(node)} |" for path, node, default in every()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
