"""The only way to the driver: no blind retry, our errors, and a cancelled call always ends."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.redis.errors import translate
from deadletter.brokers.redis.scripts import Script

_Reply = TypeVar("_Reply")
REPLY_TIMEOUT_S = 30.0  # over the driver's own time limits, for a socket that takes bytes and gives none
Arg = str | bytes | int


class RedisClient:
    """Commands and scripts on one Redis. Replies come as the server sent them."""

    def __init__(self, client: "Redis") -> None:
        self._client = client
        self._client.response_callbacks.clear()

    async def command(self, *args: Arg) -> Any:
        """One command; a lost reply is an error and never a second try."""
        return await _reply_in_time(self._client.execute_command(*args))  # type: ignore[no-untyped-call]

    async def commands(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Many commands in one round trip; a refused one is an error in its place."""
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        replies = await _reply_in_time(pipeline.execute(raise_on_error=False))
        return [translate(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def run_script(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """A script, by its digest; a server that does not know it has run nothing yet and is told it."""
        try:
            return await self._evaluate(script, keys, args)
        except _UnknownScript:
            await self.command("SCRIPT", "LOAD", script.text)
            return await self._evaluate(script, keys, args)

    async def _evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        return await _reply_in_time(
            self._client.execute_command("EVALSHA", script.digest, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        )

    async def close(self) -> None:
        """Let go of all connections."""
        try:
            await self._client.aclose(close_connection_pool=True)
        except (RedisError, OSError):
            return


class _UnknownScript(BrokerUnreachable):
    """The server does not know the script."""


async def _reply_in_time(reply: Awaitable[_Reply]) -> _Reply:
    """The reply. The driver may swallow a cancellation, so it waits in a task of its own and we do not ask it."""
    waiting = asyncio.ensure_future(reply)
    try:
        await asyncio.wait({waiting}, timeout=REPLY_TIMEOUT_S)
    except asyncio.CancelledError:
        waiting.cancel()
        waiting.add_done_callback(_retrieve_exception)
        raise
    if not waiting.done():
        waiting.cancel()
        waiting.add_done_callback(_retrieve_exception)
        raise BrokerUnreachable("Redis does not answer in time")
    try:
        return waiting.result()
    except NoScriptError as error:
        raise _UnknownScript("Redis lost its scripts") from error
    except (RedisError, OSError) as error:
        raise translate(error) from error


def _retrieve_exception(waiting: "asyncio.Future[Any]") -> None:
    """Nobody waits for it any more; its error is taken, so that the loop does not complain."""
    if not waiting.cancelled():
        waiting.exception()
