"""Sweep one queue until everything is read, and print the result as JSON.

    python -m tests.versions.sweeping KIND ADDRESS DEAD LEDGER RETRY

It runs on this release; `sweeping_0_2.py` is its counterpart for 0.2.x.
"""

import asyncio
import json
import sys

import deadletter
from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.types import MonitoredBox
from deadletter.wall_clock import now_ms


async def sweep(kind: str, address: str, dead: str, ledger: str, retry: str) -> dict:
    connection = {"kafka": {"bootstrapServers": [address]}} if kind == "kafka" else {"redis": {"url": address}}
    spec = BrokerConnectionSpec.model_validate(connection)
    async with open_broker(spec, lambda *_: b"", ("127.0.0.0/8", "10.0.0.0/8")) as broker:
        monitor = broker.monitor()
        try:
            while True:
                found = (await monitor.sweep([MonitoredBox(dead, ledger, retry)], now_ms()))[dead]
                if isinstance(found, BrokerError):
                    raise found
                if found.caught_up:
                    break
        finally:
            await monitor.close()
    return {
        "package": deadletter.__file__,
        "depth": found.depth,
        "parked": found.parked,
        "replayed": {uid: sum(progress.replayed for progress in parts) for uid, parts in found.progress.items()},
        "couriers": sorted(status.pod for status in found.couriers),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(sweep(*sys.argv[1:6]))))
