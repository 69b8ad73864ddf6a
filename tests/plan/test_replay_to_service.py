"""A Replay to a Service that the queue delivers to: it gets the same TLS, headers and Secrets as the courier."""

from typing import Any

import pytest

from deadletter.api.worker_config import ReplayAssignment
from deadletter.plan.common_manifests import WorkerImage
from deadletter.plan.facts import ReplayFacts
from deadletter.plan.replay_manifests import plan_replay
from deadletter.plan.worker_manifests import WorkerSettings
from tests.plan.builders import connection, delivered_queue, replay

WORKERS = WorkerSettings(WorkerImage("image:1"))
CA = {"caSecretRef": {"name": "authority", "key": "ca.crt"}}
BILLING = {"name": "billing", "port": 8443, "path": "/again"}


def plan(to: dict[str, Any], tls: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The manifests, by kind, of a Replay to a Service; the queue delivers to billing:8443."""
    http = {"serviceRef": {"name": "billing", "port": 8443}, **({"tls": tls} if tls is not None else {})}
    facts = ReplayFacts(queue=delivered_queue(delivery={"http": http}), connection=connection())
    return {one["kind"]: one for one in plan_replay(replay(to={"serviceRef": to}), facts, WORKERS, suspend=False)}


def assignment_of(manifests: dict[str, dict[str, Any]]) -> ReplayAssignment:
    return ReplayAssignment.model_validate_json(manifests["ConfigMap"]["data"]["assignment.json"])


@pytest.mark.parametrize(
    ("to", "tls", "url"),
    [
        (BILLING, CA, "https://billing.shop.svc:8443/again"),
        (BILLING, {}, "https://billing.shop.svc:8443/again"),
        (BILLING, None, "http://billing.shop.svc:8443/again"),
        ({"name": "billing", "port": 80}, CA, "http://billing.shop.svc:80/"),
        ({"name": "other", "port": 8443}, CA, "http://other.shop.svc:8443/"),
    ],
    ids=["with a CA", "with the authorities of the system", "without TLS", "another port", "another Service"],
)
def test_the_port_that_the_queue_delivers_to_by_tls_is_called_by_tls(
    to: dict[str, Any], tls: dict[str, Any] | None, url: str
) -> None:
    assert assignment_of(plan(to, tls)).target.url == url


@pytest.mark.parametrize("skips", [True, False])
def test_the_worker_is_told_how_to_verify_the_service(skips: bool) -> None:
    manifests = plan(BILLING, {**CA, "insecureSkipVerify": skips})
    http = assignment_of(manifests).http
    assert http is not None
    assert http.tls is not None
    assert http.tls.insecure_skip_verify is skips
    volumes = manifests["Job"]["spec"]["template"]["spec"]["volumes"]
    assert "authority" in [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]


def test_an_assignment_of_an_earlier_release_is_read() -> None:
    assignment = assignment_of(plan(BILLING, CA))
    earlier = assignment.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"http", "observe", "allow"})
    assert ReplayAssignment.model_validate(earlier).http is None
