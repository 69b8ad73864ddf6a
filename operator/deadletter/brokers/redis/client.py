"""The only way to the driver: no blind retry, our errors, and a cancelled call always ends."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.redis.errors import translated
from deadletter.brokers.redis.scripts import Script

_T = TypeVar("_T")
_PATIENCE = 30.0  # over the driver's own time limits, for a socket that takes bytes and gives none
Word = str | bytes | int


class Line:
    """Commands and scripts on one Redis. Replies come as the server sent them."""

    def __init__(self, client: "Redis") -> None:
        self._client = client
        self._client.response_callbacks.clear()

    async def call(self, *words: Word) -> Any:
        """One command; a lost reply is an error and never a second try."""
        return await _obeyed(self._client.execute_command(*words))  # type: ignore[no-untyped-call]

    async def calls(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Many commands in one round trip; a refused one is an error in its place."""
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        replies = await _obeyed(pipeline.execute(raise_on_error=False))
        return [translated(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def run(self, script: Script, keys: Sequence[str], words: Sequence[Word]) -> Any:
        """A script, by its digest; a server that does not know it has run nothing yet and is told it."""
        try:
            return await self._run(script, keys, words)
        except _Unknown:
            await self.call("SCRIPT", "LOAD", script.text)
            return await self._run(script, keys, words)

    async def _run(self, script: Script, keys: Sequence[str], words: Sequence[Word]) -> Any:
        return await _obeyed(
            self._client.execute_command("EVALSHA", script.digest, len(keys), *keys, *words)  # type: ignore[no-untyped-call]
        )

    async def close(self) -> None:
        """Let go of all connections."""
        try:
            await self._client.aclose(close_connection_pool=True)
        except (RedisError, OSError):
            return


class _Unknown(BrokerUnreachable):
    """The server does not know the script."""


async def _obeyed(reply: Awaitable[_T]) -> _T:
    """The reply. The driver may swallow a cancellation, so it waits in a task of its own and we do not ask it."""
    waiting = asyncio.ensure_future(reply)
    try:
        await asyncio.wait({waiting}, timeout=_PATIENCE)
    except asyncio.CancelledError:
        waiting.cancel()
        waiting.add_done_callback(_heard)
        raise
    if not waiting.done():
        waiting.cancel()
        waiting.add_done_callback(_heard)
        raise BrokerUnreachable("Redis does not answer in time")
    try:
        return waiting.result()
    except NoScriptError as error:
        raise _Unknown("Redis lost its scripts") from error
    except (RedisError, OSError) as error:
        raise translated(error) from error


def _heard(waiting: "asyncio.Future[Any]") -> None:
    """Nobody waits for it any more; its error is taken, so that the loop does not complain."""
    if not waiting.cancelled():
        waiting.exception()
