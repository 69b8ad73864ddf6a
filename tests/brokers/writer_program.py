"""A program that replays every letter of a box partition; tests start and kill it.

It prints `ready` and then a line for each commit. Exit code 0: all letters replayed; 3: fenced, with the reason on
stderr.
"""

import asyncio
import sys

from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker, PartitionWriter
from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.types import CommitBatch, Publication, StoredMessage
from deadletter.core.replay_progress import PartitionProgress, SettledAs, Span
from deadletter.wall_clock import now_ms
from tests.brokers.connections import LOOPBACK, kafka_at, no_secrets, redis_at

FENCED = 3


async def main(kind: str, address: str, dead: str, ledger: str, target: str, size: int) -> int:
    connection = kafka_at(address) if kind == "kafka" else redis_at(address)
    async with open_broker(connection, no_secrets, LOOPBACK) as broker:
        while True:
            try:
                return await replay_all(broker, dead, ledger, target, size)
            except Fenced as error:
                print(f"fenced: {error}", file=sys.stderr)
                return FENCED
            except BrokerError as error:
                print(f"again: {error}", file=sys.stderr)
                if not error.is_transient:
                    return 1
                await asyncio.sleep(0.2)


async def replay_all(broker: Broker, dead: str, ledger: str, target: str, size: int) -> int:
    async with broker.partition_writer(dead, ledger, 0, "uid-1") as writer:
        span = (await broker.window(dead))[0]
        progress = writer.progress or PartitionProgress(span, now_ms(), span.start)
        print("ready", flush=True)
        batch: list[StoredMessage] = []
        async for letters in broker.read(dead, [Span(0, progress.next, progress.span.end)]):
            for letter in letters:
                batch.append(letter)
                if len(batch) == size:
                    progress = await commit(writer, target, progress, batch)
                    batch = []
        if batch:
            await commit(writer, target, progress, batch)
    return 0


async def commit(
    writer: PartitionWriter, target: str, progress: PartitionProgress, batch: list[StoredMessage]
) -> PartitionProgress:
    chosen = [one for one in batch if writer.is_open(one.place.offset)]
    progress = progress.evolve(
        next=batch[-1].place.offset + 1, scanned=progress.scanned + len(batch), replayed=progress.replayed + len(chosen)
    )
    publications = [Publication(target, one.message, one.place, 0) for one in chosen]
    await writer.commit(CommitBatch(progress, publications, {SettledAs.Replayed: [one.place.offset for one in chosen]}))
    print(progress.next, flush=True)
    return progress


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:6], int(sys.argv[6]))))
