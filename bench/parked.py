"""What ten thousand letters parked for an hour cost a courier: memory, and requests to the broker while it waits.

python -m bench.parked CONNECTION URL     (run by bench.courier)
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
from deadletter.workers.courier.main import subscription_spec
from deadletter.workers.delivery.http.delivery import HttpMessageDelivery

COUNT = 10_000
IDLE_S = 20.0
POLICY = {"retryAfter": {"max": "2h"}, "circuitBreaker": {"enabled": False}}


def resident() -> float:
    """Memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


class Requests:
    """Counts what goes out to a broker."""

    def __init__(self) -> None:
        self.count = 0
        for owner, name in ((AIOKafkaConnection, "send"), (AbstractConnection, "send_packed_command")):
            setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, method):
        def counted(*words, **more):
            self.count += 1
            return method(*words, **more)

        return counted


async def wait(spec: BrokerConnectionSpec, url: str) -> dict[str, float]:
    """Growth of memory until all are parked, and requests a second from then on."""
    requests = Requests()
    async with queue(spec, COUNT, 0) as (broker, prefix):
        told = assignment(f"{url}later", prefix, spec, policy=POLICY)
        deliverer, stop = HttpMessageDelivery(told, no_secret), asyncio.Event()
        async with broker.subscribe(subscription_spec(told, "bench")) as desk:
            before = resident()
            work = asyncio.ensure_future(Courier(told, desk, deliverer).run(stop))
            while desk.parked < COUNT:
                await asyncio.sleep(0.1)
            sent, began = requests.count, time.monotonic()
            await asyncio.sleep(IDLE_S)
            found = {"mib": resident() - before, "requests": (requests.count - sent) / (time.monotonic() - began)}
            stop.set()
            await work
        await deliverer.close()
    return found


if __name__ == "__main__":
    print(json.dumps(run(wait(BrokerConnectionSpec.model_validate_json(sys.argv[1]), sys.argv[2]))))
