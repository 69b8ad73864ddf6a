"""Stop the driver's producers, consumers and tasks in cases where its own methods hang or fail (aiokafka 0.14)."""

import asyncio
import contextlib

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import errors as driver

CLOSE_TIMEOUT_S = 1.0


async def discard_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer at once, without sending what it still holds.

    `AIOKafkaProducer.stop` waits without limit for messages that cannot be sent or are not acknowledged.
    """
    producer._closed = True  # noqa: SLF001  (aiokafka has no other way to end one)
    for connection in producer.client._conns.values():  # noqa: SLF001
        if connection.connected():
            connection._writer.transport.abort()  # noqa: SLF001
    await _stop_sender(producer._sender.sender_task)  # noqa: SLF001
    manager = producer._txn_manager  # noqa: SLF001
    _retrieve_exception(manager and manager._transaction_waiter)  # noqa: SLF001
    with contextlib.suppress(driver.KafkaError, OSError, asyncio.TimeoutError):
        await asyncio.wait_for(producer.client.close(), CLOSE_TIMEOUT_S)


async def _stop_sender(sender: "asyncio.Task[None] | None") -> None:
    """Cancel the sender until it is done: it waits for its requests first, and may need a second cancellation."""
    while sender is not None and not sender.done():
        sender.cancel()
        await asyncio.wait([sender], timeout=CLOSE_TIMEOUT_S)
    _retrieve_exception(sender)


def _retrieve_exception(future: "asyncio.Future[None] | None") -> None:
    """Read the exception of a finished future, so that asyncio does not log it as never retrieved."""
    if future is not None and future.done() and not future.cancelled():
        future.exception()


async def cancel_tasks(tasks: "set[asyncio.Task[None]]") -> None:
    """Cancel tasks until they are done."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()  # repeatedly: the driver may swallow a cancellation that coincides with its own timeout
        await asyncio.wait(running, timeout=CLOSE_TIMEOUT_S)


class StoppableConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer that can be stopped while its broker is unreachable.

    aiokafka 0.14 cancels and awaits its fetches. A fetch that failed and waits for its next attempt then raises
    CancelledError in the caller of `stop`, which would end the whole worker.
    """

    async def stop(self) -> None:
        """End the fetches, then leave the group and close the connections."""
        fetcher = self._fetcher
        if fetcher is not None:
            await cancel_tasks({fetcher._fetch_task})  # noqa: SLF001  (aiokafka has no other way to end them)
            await cancel_tasks(fetcher._pending_tasks)  # noqa: SLF001
            fetcher._pending_tasks.clear()  # noqa: SLF001
        await super().stop()
