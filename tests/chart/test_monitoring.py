"""Alerts and dashboard use existing metrics, alerts fire when they should, and each has a runbook."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.bed import places, tools

pytestmark = pytest.mark.server

FILES = places.REPOSITORY / "charts" / "dlq-operator" / "files"
RULES = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in json.loads((FILES / "dashboard.json").read_text())["panels"] if panel["type"] != "row"]
NAME = re.compile(r"\bdlq_[a-z_]+")


def exported() -> set[str]:
    """Return the names under which Prometheus stores our metrics."""
    from prometheus_client import REGISTRY

    import deadletter.metrics
    import deadletter.workers.metrics  # noqa: F401

    endings = ("", "_total", "_info", "_bucket")
    return {f"{metric.name}{ending}" for metric in REGISTRY.collect() for ending in endings}


def test_alerts_fire_and_are_silent_in_promtool(tmp_path: Path) -> None:
    tools.need("promtool")
    shutil.copy(FILES / "alerts.yaml", tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    tools.run([tools.path("promtool"), "test", "rules", str(tmp_path / "alerts_test.yaml")], timeout=120)


def test_every_alert_names_metrics_that_exist() -> None:
    for rule in RULES:
        assert set(NAME.findall(rule["expr"])) <= exported(), rule["alert"]


def test_no_alert_depends_on_the_pod_that_exports_the_metric() -> None:
    for rule in RULES:
        assert re.search(r"\b(max|min|sum) by \(namespace, |\babsent\(", rule["expr"]), rule["alert"]


def test_every_panel_names_metrics_that_exist() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert set(NAME.findall(target["expr"])) <= exported(), panel["title"]


@pytest.mark.parametrize(
    "metric",
    [
        "dlq_letters", "dlq_oldest_letter_age_seconds", "dlq_retention_loss_timestamp_seconds", "dlq_group_letters",
        "dlq_delivery_attempts_total", "dlq_queue_circuit_open", "dlq_replay_letters", "dlq_queue_ready",
    ],
)  # fmt: skip
def test_important_metrics_are_on_the_dashboard(metric: str) -> None:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert [expr for expr in queries if metric in NAME.findall(expr)]


def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    tools.need("promtool")
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(queries)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    tools.run([tools.path("promtool"), "check", "rules", str(file)], timeout=120)


def test_every_alert_has_a_runbook_and_a_promtool_test() -> None:
    runbooks = (places.REPOSITORY / "docs" / "operations" / "alerts.md").read_text()
    tested = Path(__file__).with_name("alerts_test.yaml").read_text()
    for rule in RULES:
        assert f"## {rule['alert']}\n" in runbooks
        assert f"alertname: {rule['alert']}\n" in tested
        assert f"alertname: {rule['alert']}, exp_alerts: []" in tested, (
            "alerts_test.yaml has no case in which it is silent"
        )
        assert rule["annotations"]["runbook_url"] == f"RUNBOOKS#{rule['alert'].lower()}"


def test_every_metric_is_in_the_reference() -> None:
    from prometheus_client.metrics import MetricWrapperBase

    import deadletter.metrics
    import deadletter.workers.metrics

    page = (places.REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
    for module in (deadletter.metrics, deadletter.workers.metrics):
        for metric in vars(module).values():
            if isinstance(metric, MetricWrapperBase):
                assert f"`{metric._name}" in page
                assert metric._documentation in page
