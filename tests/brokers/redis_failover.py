"""A Redis and its replica behind one address, like a Service; a test moves the address and swaps the roles."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostConnection

from tests.brokers.redis_servers import HERE, own_redis, url_of

TIMEOUT_S = 60.0


class RedisFailover:
    """One address in front of two Redis servers; `target` is the port that new connections reach."""

    def __init__(self, master: int, replica: int) -> None:
        self.master, self.replica, self.target = master, replica, master
        self.port = 0
        self._forwarding: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return url_of(self.port)

    async def until_replicated(self) -> None:
        """Wait until the replica has everything that the master has acknowledged."""
        async with asyncio.timeout(TIMEOUT_S), Redis(host=HERE, port=self.master) as master:
            while await master.wait(1, 1_000) < 1:
                await asyncio.sleep(0.05)

    async def stop_replication(self) -> None:
        """Stop the replication: a failover loses all writes from now on."""
        async with Redis(host=HERE, port=self.replica) as replica:
            await replica.replicaof(HERE, 1)  # type: ignore[no-untyped-call]

    async def kill_master(self) -> None:
        """Kill the master with all its connections and promote the replica."""
        async with Redis(host=HERE, port=self.master) as master:
            with suppress(OSError, LostConnection):
                await master.shutdown(nosave=True, now=True)  # without waiting for the replica
        await self._promote()

    async def demote_master(self) -> None:
        """Promote the replica; the old master follows it, so that open connections stay open and become read-only."""
        await self._promote()
        async with Redis(host=HERE, port=self.master) as master:
            await master.replicaof(HERE, self.replica)  # type: ignore[no-untyped-call]

    async def make_read_only(self) -> None:
        """Turn the master into a replica and keep the address on it."""
        async with Redis(host=HERE, port=self.master) as master:
            await master.replicaof(HERE, self.replica)  # type: ignore[no-untyped-call]

    async def _promote(self) -> None:
        async with Redis(host=HERE, port=self.replica) as replica:
            await replica.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
        self.target = self.replica

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection(HERE, self.target)
        except OSError:
            writer.close()
            return
        directions = {asyncio.create_task(_copy(reader, outer)), asyncio.create_task(_copy(inner, writer))}
        self._forwarding |= directions
        await asyncio.wait(directions)
        self._forwarding -= directions

    async def close(self) -> None:
        """Cut all open connections."""
        for direction in list(self._forwarding):
            direction.cancel()
        while self._forwarding:
            await asyncio.sleep(0.01)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


@asynccontextmanager
async def redis_with_replica(directory: Path) -> AsyncIterator[RedisFailover]:
    """Start a master, a replica that has caught up, and the address in front of them."""
    async with AsyncExitStack() as stack:
        master = stack.enter_context(own_redis(directory / "master", "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(own_redis(directory / "replica", "--replicaof", f"{HERE} {master}"))
        failover = RedisFailover(master, replica)
        await failover.until_replicated()
        front = await asyncio.start_server(failover.forward, HERE, 0)
        stack.push_async_callback(failover.close)
        stack.callback(front.close)
        failover.port = front.sockets[0].getsockname()[1]
        yield failover
