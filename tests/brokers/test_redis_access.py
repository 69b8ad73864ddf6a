"""Access to Redis: logins, ACLs, Redis Cluster and forbidden addresses."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NotAuthorised,
    NotSupported,
)
from deadletter.core.box_types import BoxSpec
from tests.brokers.connections import LOOPBACK, no_secrets, redis_at
from tests.brokers.redis_servers import HERE, own_redis, url_of

pytestmark = pytest.mark.server


async def test_rights_and_rotated_logins_are_respected(tmp_path: Path) -> None:
    with own_redis(tmp_path) as port:
        admin = Redis(host=HERE, port=port)
        await admin.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info", "+client")
        await admin.execute_command("CONFIG", "SET", "requirepass", "other")
        login = {"username": b"reader", "password": b"secret\n"}
        spec = BrokerConnectionSpec.model_validate({"redis": {"url": url_of(port), "secretRef": {"name": "user"}}})
        async with open_broker(spec, lambda _, key: login[key], LOOPBACK) as broker:
            assert (await broker.server_info()).id == f"{HERE}:{port}/0"
            with pytest.raises(NotAuthorised):
                await broker.ensure(BoxSpec("orders"))
        login["password"] = b"wrong"
        async with open_broker(spec, lambda _, key: login[key], LOOPBACK) as broker:
            with pytest.raises(AuthenticationFailed) as refused:
                await broker.server_info()
            assert "wrong" not in str(refused.value)
            login["password"] = b"secret"
            assert (await broker.server_info()).kind == "Redis"  # the Secret is read again for the next connection
        async with open_broker(redis_at(url_of(port)), no_secrets, LOOPBACK) as broker:
            with pytest.raises(AuthenticationFailed):
                await broker.server_info()
        await admin.aclose()


async def test_a_cluster_is_not_supported_yet(tmp_path: Path) -> None:
    with own_redis(tmp_path, "--cluster-enabled", "yes") as port:
        async with open_broker(redis_at(url_of(port)), no_secrets, LOOPBACK) as broker:
            with pytest.raises(NotSupported):
                await broker.server_info()
    cluster = {"redis": {"url": "redis://nowhere:6379", "mode": "Cluster"}}
    with pytest.raises(NotSupported):
        async with open_broker(BrokerConnectionSpec.model_validate(cluster), no_secrets):
            pass


async def test_a_forbidden_address_is_never_dialled(tmp_path: Path) -> None:
    with own_redis(tmp_path) as port:
        async with open_broker(redis_at(url_of(port)), no_secrets) as broker:
            with pytest.raises(BrokerUnreachable):
                await broker.server_info()
