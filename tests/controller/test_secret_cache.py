"""Secret cache: when a Secret is read again, and how long it is kept."""

from types import SimpleNamespace
from typing import Any

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.facts import secret_users
from deadletter.controller.state.broker_pool import PooledBroker
from deadletter.controller.state.secret_cache import SecretCache
from deadletter.settings import Settings
from tests.plan.builders import metadata


async def test_a_secret_is_read_again_after_its_ttl_and_sooner_if_it_is_missing() -> None:
    stored: dict[str, Any] = {}

    async def get(*_: Any) -> dict[str, Any] | None:
        return stored or None

    kube: Any = SimpleNamespace(get=get)
    cache = SecretCache(kube, 60, require_label=False, grant="")

    async def exists_after(*ages: float) -> list[bool]:
        """Make the cached Secret older by each of these seconds in turn; return whether it exists then."""
        found = []
        for seconds in ages:
            cache._cached["shop", "login"].read_at -= seconds
            found.append((await cache.fact("shop", "login")).exists)
        return found

    assert not (await cache.fact("shop", "login")).exists
    stored |= {"metadata": metadata("login"), "data": {"password": "eA=="}}
    assert await exists_after(4, 2) == [False, True]
    stored.clear()
    assert await exists_after(58, 3) == [True, False]


async def test_a_secret_is_in_use_as_long_as_an_open_broker_needs_it() -> None:
    context = OperatorContext(Settings(), SimpleNamespace())  # type: ignore[arg-type]
    spec = BrokerConnectionSpec.model_validate({"redis": {"url": "redis://r:6379/0", "secretRef": {"name": "login"}}})
    context.pool._brokers["shop", "broker"] = PooledBroker(spec, None, None, None)  # type: ignore[arg-type]
    assert secret_users(context).keys() == {("shop", "login")}
