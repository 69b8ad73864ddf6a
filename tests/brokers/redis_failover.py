"""A Redis and its replica behind one address, as a Service has it; a test moves the address and changes the roles."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostConnection

from tests.brokers.redis_servers import HERE, own_redis, url_of

PATIENCE_S = 60.0


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
        async with asyncio.timeout(PATIENCE_S), Redis(host=HERE, port=self.master) as master:
            while await master.wait(1, 1_000) < 1:
                await asyncio.sleep(0.05)

    async def stop_replication(self) -> None:
        """Cut the link to the master: what follows is lost by a failover."""
        async with Redis(host=HERE, port=self.replica) as replica:
            await replica.replicaof(HERE, 1)  # type: ignore[no-untyped-call]

    async def kill_master(self) -> None:
        """The master ends with all its connections; the replica takes over."""
        async with Redis(host=HERE, port=self.master) as master:
            with suppress(OSError, LostConnection):
                await master.shutdown(nosave=True, now=True)  # without waiting for the replica
        await self._promote()

    async def demote_master(self) -> None:
        """The replica takes over and the old master follows it; open connections stay open and read-only."""
        await self._promote()
        async with Redis(host=HERE, port=self.master) as master:
            await master.replicaof(HERE, self.replica)  # type: ignore[no-untyped-call]

    async def make_read_only(self) -> None:
        """The address leads to a replica for good."""
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
        ways = {asyncio.create_task(_copy(reader, outer)), asyncio.create_task(_copy(inner, writer))}
        self._forwarding |= ways
        await asyncio.wait(ways)
        self._forwarding -= ways

    async def close(self) -> None:
        """Cut what is still connected."""
        for way in list(self._forwarding):
            way.cancel()
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
    """A master, its replica in step with it, and the address in front of them."""
    async with AsyncExitStack() as stack:
        master = stack.enter_context(own_redis(directory / "master", "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(own_redis(directory / "replica", "--replicaof", f"{HERE} {master}"))
        made = RedisFailover(master, replica)
        await made.until_replicated()
        front = await asyncio.start_server(made.forward, HERE, 0)
        stack.push_async_callback(made.close)
        stack.callback(front.close)
        made.port = front.sockets[0].getsockname()[1]
        yield made
