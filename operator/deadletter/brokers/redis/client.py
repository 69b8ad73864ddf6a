"""Send commands and scripts to Redis: no retries, errors of the broker contract, prompt cancellation."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from deadletter.brokers.errors import BrokerError, BrokerUnreachable
from deadletter.brokers.redis.errors import translate
from deadletter.brokers.redis.scripts import Script

_Reply = TypeVar("_Reply")
CALL_TIMEOUT_S = 30.0  # in addition to the driver's timeouts, for a server that reads and never answers
Arg = str | bytes | int


def to_dict(reply: list[Any]) -> dict[bytes, Any]:
    """Convert a reply of names and values in turn."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def raise_first(replies: list[Any]) -> list[Any]:
    """Return the replies of `RedisClient.commands`, or raise the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


class RedisClient:
    """Commands and scripts on one Redis. Replies are returned as the server sent them, without conversion."""

    def __init__(self, driver: "Redis") -> None:
        self._driver = driver
        self._driver.response_callbacks.clear()

    async def command(self, *args: Arg) -> Any:
        """Send one command. A lost reply is an error; the command is never repeated."""
        return await self._reply(self._driver.execute_command(*args))  # type: ignore[no-untyped-call]

    async def commands(self, requests: Sequence[Sequence[Arg]]) -> list[Any]:
        """Send many commands in one round trip. A refused command has its error in the place of its reply."""
        if not requests:
            return []
        pipeline = self._driver.pipeline(transaction=False)
        for args in requests:
            pipeline.execute_command(*args)
        replies = await self._reply(pipeline.execute(raise_on_error=False))
        translated = [translate(reply) if isinstance(reply, Exception) else reply for reply in replies]
        for reply in translated:
            if isinstance(reply, BrokerError):
                await self._drop_idle_connections_after(reply)
        return translated

    async def run_script(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script by its digest. A server that does not have it runs nothing; then it is loaded and run."""
        try:
            return await self._evaluate(script, keys, args)
        except _UnknownScript:
            await self.command("SCRIPT", "LOAD", script.text)
            return await self._evaluate(script, keys, args)

    async def _evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        return await self._reply(
            self._driver.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        )

    async def _reply(self, reply: Awaitable[_Reply]) -> _Reply:
        try:
            return await _reply_in_time(reply)
        except BrokerError as error:
            await self._drop_idle_connections_after(error)
            raise

    async def _drop_idle_connections_after(self, error: BrokerError) -> None:
        """Close the idle connections if the server does not answer or is not the primary any more.

        A failover may leave connections open. The next command connects again and finds the primary; a connection that
        is in use is dropped after its own error.
        """
        if error.is_connection_problem:
            with suppress(RedisError, OSError):  # closing TLS towards a server that is frozen runs into a timeout
                await self._driver.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close all connections."""
        try:
            await self._driver.aclose(close_connection_pool=True)
        except (RedisError, OSError):
            return


class _UnknownScript(BrokerUnreachable):
    """The server does not have the script."""

    is_connection_problem = False


async def _reply_in_time(reply: Awaitable[_Reply]) -> _Reply:
    """Wait for a reply in a task of its own, because the driver may swallow a cancellation."""
    waiting = asyncio.ensure_future(reply)
    try:
        await asyncio.wait({waiting}, timeout=CALL_TIMEOUT_S)
    except asyncio.CancelledError:
        _abandon(waiting)
        raise
    if not waiting.done():
        _abandon(waiting)
        raise BrokerUnreachable("Redis does not answer in time")
    try:
        return waiting.result()
    except NoScriptError as error:
        raise _UnknownScript("Redis has lost its scripts") from error
    except (RedisError, OSError) as error:
        raise translate(error) from error


def _abandon(waiting: "asyncio.Future[Any]") -> None:
    waiting.cancel()
    waiting.add_done_callback(_retrieve_exception)


def _retrieve_exception(waiting: "asyncio.Future[Any]") -> None:
    # Otherwise the event loop logs an exception that was never retrieved.
    if not waiting.cancelled():
        waiting.exception()
