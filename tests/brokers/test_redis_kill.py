"""Killed partition writers on a real Redis, and restarts of Redis itself."""

from pathlib import Path

import pytest

from deadletter.brokers.connect import open_broker
from tests.brokers import writer_processes
from tests.brokers.connections import LOOPBACK, no_secrets, redis_at
from tests.brokers.helpers import make_boxes
from tests.brokers.kill_contract import KillContract
from tests.brokers.redis_servers import DurableRedis, url_of

BROKER = "redis"


class TestRedisKills(KillContract):
    """The kill tests on Redis."""


@pytest.mark.parametrize("hard", [True, False])
async def test_a_restarted_redis_loses_and_duplicates_nothing(tmp_path: Path, hard: bool) -> None:
    """Redis ends three times during a replay, by SIGKILL or SIGTERM; it has persisted every acknowledged write."""
    with DurableRedis(tmp_path) as redis:
        address = url_of(redis.port)
        async with open_broker(redis_at(address), no_secrets, LOOPBACK) as broker:
            boxes = await make_boxes(broker, "orders")
            await writer_processes.publish_letters(broker, boxes, 10_000)
            writer = await writer_processes.start("redis", address, boxes, 50)
            for _ in range(3):
                assert await writer.wait_for_commits(5)
                redis.restart(hard)
            code, errors = await writer.end()
            assert code == 0, errors
            await writer_processes.check_moved_exactly_once(broker, boxes, 10_000)
