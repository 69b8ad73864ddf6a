"""Alerts and dashboard speak of metrics that exist, fire when they should, and every alert has a runbook."""

import json
import re
import shutil
from pathlib import Path

import yaml

from tests.bed import places, tools

FILES = places.REPOSITORY / "charts" / "dlq-operator" / "files"
RULES = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"]
NAME = re.compile(r"\bdlq_[a-z_]+")


def exported() -> set[str]:
    """The names Prometheus sees of every metric in our lists."""
    from prometheus_client import REGISTRY

    import deadletter.metrics
    import deadletter.workers.metrics  # noqa: F401

    return {
        name for metric in REGISTRY.collect() for name in (metric.name, f"{metric.name}_total", f"{metric.name}_info")
    }


def test_the_alerts_fire_and_are_silent_as_promtool_sees_it(tmp_path: Path) -> None:
    tools.need("promtool")
    shutil.copy(FILES / "alerts.yaml", tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    tools.run([tools.path("promtool"), "test", "rules", str(tmp_path / "alerts_test.yaml")], timeout=120)


def test_every_alert_names_metrics_that_exist() -> None:
    for rule in RULES:
        assert set(NAME.findall(rule["expr"])) <= exported(), rule["alert"]


def test_every_panel_names_metrics_that_exist() -> None:
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert set(NAME.findall(target["expr"])) <= exported(), panel["title"]


def test_every_alert_has_a_runbook_and_a_promtool_test() -> None:
    runbooks = (places.REPOSITORY / "docs" / "operations" / "alerts.md").read_text()
    tested = Path(__file__).with_name("alerts_test.yaml").read_text()
    for rule in RULES:
        assert f"## {rule['alert']}\n" in runbooks
        assert f"alertname: {rule['alert']}\n" in tested
        assert f"alertname: {rule['alert']}, exp_alerts: []" in tested, "it is silent before"
        assert rule["annotations"]["runbook_url"] == f"RUNBOOKS#{rule['alert'].lower()}"


def test_every_metric_stands_in_the_reference() -> None:
    from prometheus_client.metrics import MetricWrapperBase

    import deadletter.metrics
    import deadletter.workers.metrics

    page = (places.REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
    for module in (deadletter.metrics, deadletter.workers.metrics):
        for metric in vars(module).values():
            if isinstance(metric, MetricWrapperBase):
                assert f"`{metric._name}" in page
                assert metric._documentation in page
