"""Redis 7 and newer, and Valkey, which speaks the same commands: boxes are streams, letters wait in sorted sets."""

from deadletter.brokers.redis.connection import open_redis

__all__ = ["open_redis"]
