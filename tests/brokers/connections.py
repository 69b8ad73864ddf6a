"""Connections of tests: without Secrets, with the addresses of the test bed, and unique names."""

import uuid

from deadletter.api.broker_connections import BrokerConnectionSpec
from tests.bed.redis_sentinel import PRIMARY, RedisSentinel

LOOPBACK = ("127.0.0.0/8", "10.0.0.0/8")


def no_secrets(name: str, key: str) -> bytes:
    raise KeyError(name)


def kafka_at(bootstrap: str) -> BrokerConnectionSpec:
    return BrokerConnectionSpec.model_validate({"kafka": {"bootstrapServers": bootstrap.split(",")}})


def redis_at(url: str) -> BrokerConnectionSpec:
    return BrokerConnectionSpec.model_validate({"redis": {"url": url}})


def sentinel_at(servers: RedisSentinel) -> BrokerConnectionSpec:
    """Connect through the Sentinels; the host of the url is not dialled."""
    sentinel = {"masterName": PRIMARY, "nodes": servers.sentinels}
    redis = {"url": "redis://primary.invalid/0", "mode": "Sentinel", "sentinel": sentinel}
    return BrokerConnectionSpec.model_validate({"redis": redis})


def fresh_name(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"
