"""Fields that the schema takes and nothing carries out yet: one list, so that none is silently without effect."""

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.replays import Replay


def unsupported(thing: DeadLetterQueue | BrokerConnection | Replay) -> list[str]:
    """Paths of the fields in this object that are not built."""
    if isinstance(thing, BrokerConnection) and thing.spec.redis and thing.spec.redis.mode != "Standalone":
        return [f"spec.redis.mode: {thing.spec.redis.mode}"]
    return []
