"""The program of `sweeping.py` for the releases 0.2.x, whose modules and classes have other names."""

import asyncio
import json
import sys
import time

from deadletter.api.brokerconnections import BrokerConnectionSpec
from deadletter.brokers.values import Watched

import deadletter
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerError


async def sweep(kind: str, address: str, dead: str, ledger: str, retry: str) -> dict:
    where = {"kafka": {"bootstrapServers": [address]}} if kind == "kafka" else {"redis": {"url": address}}
    spec = BrokerConnectionSpec.model_validate(where)
    async with open_broker(spec, lambda *_: b"", ("127.0.0.0/8", "10.0.0.0/8")) as broker:
        registers = broker.registers()
        try:
            while True:
                found = (await registers.sweep([Watched(dead, ledger, retry)], time.time_ns() // 1_000_000))[dead]
                if isinstance(found, BrokerError):
                    raise found
                if found.caught_up:
                    break
        finally:
            await registers.close()
    return {
        "package": deadletter.__file__,
        "depth": found.depth,
        "parked": found.parked,
        "replayed": {uid: sum(tally.replayed for tally in parts) for uid, parts in found.tallies.items()},
        "couriers": sorted(word.pod for word in found.couriers),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(sweep(*sys.argv[1:6]))))
