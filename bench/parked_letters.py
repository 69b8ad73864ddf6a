"""Measure what 10,000 letters parked for an hour cost a courier: memory, and requests to the broker while it waits.

python -m bench.parked_letters CONNECTION URL     (run by bench.courier)
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from aiokafka.conn import AIOKafkaConnection
from redis.asyncio.connection import AbstractConnection

from bench.courier import assignment, no_secret, queue, run
from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.main import delivery_for, subscription_spec

LETTERS = 10_000
IDLE_S = 20.0
POLICY = {"retryAfter": {"max": "2h"}, "circuitBreaker": {"enabled": False}}


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


class RequestCounter:
    """Counts the requests that the drivers send to brokers."""

    def __init__(self) -> None:
        self.count = 0
        for owner, name in ((AIOKafkaConnection, "send"), (AbstractConnection, "send_packed_command")):
            setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, method):
        def counted(*args, **kwargs):
            self.count += 1
            return method(*args, **kwargs)

        return counted


async def measure(spec: BrokerConnectionSpec, url: str) -> dict[str, float]:
    """Return the growth of memory until all are parked, and the requests per second from then on."""
    requests = RequestCounter()
    async with queue(spec, LETTERS, 0) as (broker, prefix):
        task = assignment(f"{url}later", prefix, spec, policy=POLICY)
        delivery, stop = delivery_for(task, no_secret), asyncio.Event()
        async with broker.subscribe(subscription_spec(task, "bench")) as subscription:
            before = resident_mib()
            work = asyncio.ensure_future(Courier(task, subscription, delivery).run(stop))
            while subscription.parked_letters < LETTERS:
                await asyncio.sleep(0.1)
            sent, began = requests.count, time.monotonic()
            await asyncio.sleep(IDLE_S)
            found = {"mib": resident_mib() - before, "requests": (requests.count - sent) / (time.monotonic() - began)}
            stop.set()
            await work
        await delivery.close()
    return found


if __name__ == "__main__":
    print(json.dumps(run(measure(BrokerConnectionSpec.model_validate_json(sys.argv[1]), sys.argv[2]))))
