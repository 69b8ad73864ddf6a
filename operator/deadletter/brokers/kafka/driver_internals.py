"""The end of producers, consumers and tasks, which the driver does not end well by itself."""

import asyncio
import contextlib

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import errors as driver

CLOSE_TIMEOUT = 1.0


async def discard_producer(producer: AIOKafkaProducer) -> None:
    """Throw a producer away, whatever it is doing: `stop` waits for ever for what cannot be sent or is not taken."""
    producer._closed = True  # noqa: SLF001  (aiokafka has no other way to end one)
    for connection in producer.client._conns.values():  # noqa: SLF001
        if connection.connected():
            connection._writer.transport.abort()  # noqa: SLF001
    await _end(producer._sender.sender_task)  # noqa: SLF001
    manager = producer._txn_manager  # noqa: SLF001
    _hear(manager and manager._transaction_waiter)  # noqa: SLF001
    with contextlib.suppress(driver.KafkaError, OSError, asyncio.TimeoutError):
        await asyncio.wait_for(producer.client.close(), CLOSE_TIMEOUT)


async def _end(sender: "asyncio.Task[None] | None") -> None:
    """It ends its requests first, which fail at once by now; what only waits for a broker needs to be told twice."""
    while sender is not None and not sender.done():
        sender.cancel()
        await asyncio.wait([sender], timeout=CLOSE_TIMEOUT)
    _hear(sender)


def _hear(one: "asyncio.Future[None] | None") -> None:
    """Else Python complains about its error in the log."""
    if one is not None and one.done() and not one.cancelled():
        one.exception()


async def cancel_tasks(tasks: "set[asyncio.Task[None]]") -> None:
    """Cancel tasks until they are done."""
    while under_way := [task for task in tasks if not task.done()]:
        for task in under_way:
            task.cancel()  # again and again: a driver may swallow one that meets its own timeout
        await asyncio.wait(under_way, timeout=1.0)


class StoppableConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer that can be stopped while its broker is away.

    aiokafka 0.14 cancels and awaits its fetches. One that failed and waits for its next try then raises CancelledError
    in the caller of `stop`, which ended the whole worker.
    """

    async def stop(self) -> None:
        """End the fetches, then leave the group and close the connections."""
        fetcher = self._fetcher
        if fetcher is not None:
            await cancel_tasks({fetcher._fetch_task})  # noqa: SLF001  (aiokafka has no other way to end them)
            await cancel_tasks(fetcher._pending_tasks)  # noqa: SLF001
            fetcher._pending_tasks.clear()  # noqa: SLF001
        await super().stop()
