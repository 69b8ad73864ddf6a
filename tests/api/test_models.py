"""Tests of the models: durations, defaults, derived names, references."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from pydantic import TypeAdapter, ValidationError

from deadletter.api.base import Duration
from deadletter.api.broker_connections import BrokerConnection, BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.delivery import HttpDelivery
from deadletter.api.queue_spec import Redaction
from deadletter.api.replay_spec import Rate
from deadletter.api.replays import Replay
from deadletter.api.retry_policies import RetryPolicy, RetryPolicySpec
from deadletter.api.worker_config import (
    Boxes,
    CourierAssignment,
    LiveConfig,
    RedriveAssignment,
    ReplayAssignment,
    ReplayTarget,
    ResolvedRoute,
)
from deadletter.core import durations
from deadletter.core.policy import DEFAULT_POLICY
from deadletter.plan.queue_checks import unsupported_fields
from tests.api.manifests import ADOPTED, DELIVERED, KAFKA, PLAIN, REDIS, REPLAYED, merged
from tests.api.server import manifest

DURATION = TypeAdapter(Duration)
DETERMINISTIC = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
# GEP-2257, section "Formats" and its test vectors
GOOD = ("0h", "0s", "0h0m0s", "1h", "30m", "10s", "500ms", "2h30m", "150m", "7230s", "1h30m10s", "10s30m1h")
GOOD += ("100ms200ms300ms", "99999h", "1h1m1s1ms")
BAD = ("", "1", "1m1", "1h30m10s20ms50h", "999999h", "1.5h", "-15m", "1d", "h", "1 h", "1H", "١s", "1s\n", "5us")


@pytest.mark.parametrize("text", GOOD)
def test_durations_of_gep_2257_are_accepted(text):
    assert durations.parse(DURATION.validate_python(text)) >= 0


@pytest.mark.parametrize("text", BAD)
def test_other_durations_are_rejected(text):
    with pytest.raises(ValidationError):
        DURATION.validate_python(text)


@DETERMINISTIC
@given(some.integers(0, durations.MAX_MS))
def test_every_duration_that_core_renders_is_accepted(ms):
    assert durations.parse(DURATION.validate_python(durations.render(ms))) == ms


@DETERMINISTIC
@given(some.text(max_size=12))
def test_model_and_core_agree_on_durations(text):
    try:
        durations.parse(text)
        good = True
    except ValueError:
        good = False
    try:
        DURATION.validate_python(text)
        assert good
    except ValidationError:
        assert not good


def _queue(spec, name="orders"):
    return DeadLetterQueue.from_body(manifest("DeadLetterQueue", spec, name))


def test_an_empty_policy_is_the_built_in_one():
    assert RetryPolicySpec().to_policy() == DEFAULT_POLICY
    assert RetryPolicy.from_body({"metadata": {"name": "a"}}).spec == RetryPolicySpec()


def test_a_policy_becomes_milliseconds():
    spec = RetryPolicySpec.model_validate(
        {
            "maxAge": "24h",
            "rules": [
                {"name": "a", "match": "error.status == 429", "category": "Resource", "backoff": {"initial": "5s"}}
            ],
            "errorBudget": {"letters": 100, "per": "10m"},
        }
    )
    policy = spec.to_policy()
    assert (policy.max_age, policy.budget.per, policy.rules[0].backoff.initial) == (86_400_000, 600_000, 5_000)
    assert policy.rules[0].category == "Resource"


@pytest.mark.parametrize(("spec", "shape"), [(DELIVERED, "Delivered"), (PLAIN, "Plain"), (ADOPTED, "Adopted")])
def test_a_queue_has_one_of_three_shapes(spec, shape):
    assert _queue(spec).shape == shape


def test_the_boxes_of_a_queue_are_named_by_the_broker():
    assert _queue(DELIVERED).boxes(redis=False) == Boxes(
        source="orders",
        dead="orders.billing.dlq",
        retry="orders.billing.dlq.retry",
        ledger="orders.billing.dlq.ledger",
    )
    assert _queue(DELIVERED).boxes(redis=True).dead == "{orders}.billing.dlq"
    assert _queue(ADOPTED).boxes(redis=False) == Boxes(dead="orders.dlq", ledger="orders.dlq.ledger")


def test_names_that_only_redis_accepts_are_reported():
    queue = _queue(merged(DELIVERED, {"source": {"name": "a:b"}}))
    assert queue.invalid_name_fields(redis=True) == ()
    assert queue.invalid_name_fields(redis=False) == ("source.name", "dead.name")


def test_the_request_url_of_a_delivery():
    http = HttpDelivery.model_validate({"serviceRef": {"name": "billing", "port": 8080, "path": "/orders"}})
    assert http.request_url("shop") == "http://billing.shop.svc:8080/orders"
    assert http.model_copy(update={"tls": {}}).request_url("shop").startswith("https://")
    assert HttpDelivery.model_validate({"url": "https://a/b"}).request_url("shop") == "https://a/b"


def test_success_is_a_set_of_statuses():
    http = HttpDelivery.model_validate({"url": "https://a", "success": [204, "300-302"]})
    assert [status for status in range(200, 600) if http.is_success(status)] == [204, 300, 301, 302]


def test_secrets_of_a_connection_are_listed_once():
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientSecretRef": {"name": "user"}}
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "user"}}
    spec = BrokerConnectionSpec.model_validate(merged(KAFKA, {"kafka": {"tls": tls, "sasl": sasl}}))
    assert spec.secret_names == ("user", "ca")
    assert not spec.is_redis
    redis = BrokerConnectionSpec.model_validate(merged(REDIS, {"redis": {"secretRef": {"name": "r"}}}))
    assert (redis.secret_names, redis.is_redis) == (("r",), True)


def test_unsupported_fields_are_listed():
    def connection(**redis):
        return BrokerConnection.from_body(manifest("BrokerConnection", merged(REDIS, {"redis": redis})))

    assert unsupported_fields(connection()) == []
    assert unsupported_fields(connection(mode="Cluster")) == ["spec.redis.mode: Cluster"]
    assert unsupported_fields(_queue(DELIVERED)) == []


def test_unknown_fields_of_a_status_are_ignored():
    body = manifest("Replay", REPLAYED) | {"status": {"matched": 3, "soon": True, "conditions": []}}
    assert Replay.from_body(body).status.matched == 3


def test_an_unknown_field_of_a_spec_is_rejected():
    with pytest.raises(ValidationError, match="Extra inputs"):
        Replay.from_body(manifest("Replay", REPLAYED | {"soon": True}))


def test_models_are_frozen():
    with pytest.raises(ValidationError):
        _queue(DELIVERED).spec.suspend = True


def test_reading_an_assignment_inverts_writing_it():
    broker = BrokerConnectionSpec.model_validate(KAFKA)
    queue = _queue(DELIVERED)
    common = {"namespace": "shop", "queue": "orders", "broker": broker, "boxes": queue.boxes(redis=False)}
    courier = CourierAssignment(
        **common,
        group="billing",
        delivery=queue.spec.delivery,
        url="http://billing",
        routes=(ResolvedRoute(match="true", box="other"),),
    )
    replay = ReplayAssignment(
        **common,
        name="r",
        uid="u",
        spec=Replay.from_body(manifest("Replay", REPLAYED)).spec,
        target=ReplayTarget(kind="Queue", box="b", broker=broker),
    )
    redrive = RedriveAssignment(**common, where="attempts < 3")
    live = LiveConfig(paused="CapacityReached", rate=Rate(per_second=5), redaction=Redaction(json_pointers=("/card",)))
    for config in (courier, replay, redrive, live):
        assert type(config).model_validate_json(config.model_dump_json()) == config
        assert type(config).model_validate_json(config.model_dump_json(by_alias=True)) == config
