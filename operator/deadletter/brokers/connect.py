"""Open the broker that a BrokerConnection describes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from deadletter.api.broker_connections import BrokerConnectionSpec, KafkaConnection
from deadletter.brokers.address_check import address_check
from deadletter.brokers.contract import Broker
from deadletter.net.secrets import Secrets


def open_broker(
    spec: BrokerConnectionSpec, secrets: Secrets, allow: Sequence[str] = ()
) -> AbstractAsyncContextManager[Broker]:
    """Open a broker. It connects at the first request, so an unreachable broker fails there and not here."""
    if spec.redis is not None:
        from deadletter.brokers.redis.connection import open_redis

        return open_redis(spec.redis, secrets, allow)
    if spec.kafka is None:
        raise ValueError("exactly one of kafka and redis must be set")
    return _open_kafka(spec.kafka, secrets, allow)


@asynccontextmanager
async def _open_kafka(spec: KafkaConnection, secrets: Secrets, allow: Sequence[str]) -> AsyncIterator[Broker]:
    from deadletter.brokers.kafka.broker import KafkaBroker
    from deadletter.brokers.kafka.client import KafkaClient
    from deadletter.brokers.kafka.credentials import KafkaCredentials

    client = KafkaClient(spec.bootstrap_servers, KafkaCredentials(spec, secrets), address_check(allow))
    try:
        yield KafkaBroker(client)
    finally:
        await client.close()
