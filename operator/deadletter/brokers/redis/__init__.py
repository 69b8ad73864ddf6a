"""Redis 7 and newer, and Valkey, which has the same commands: boxes are streams, parked letters are in sorted sets."""

from deadletter.brokers.redis.connection import open_redis

__all__ = ["open_redis"]
