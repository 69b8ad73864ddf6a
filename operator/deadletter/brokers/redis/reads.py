"""Ranged reads of a stream: bounded batches, the next one fetched while the last is worked on."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.entries import from_fields
from deadletter.brokers.types import StoredMessage
from deadletter.core.letters import SEQUENCE_BITS, SEQUENCE_MASK, Place
from deadletter.core.replay_progress import Span

MIN_BATCH_ENTRIES, MAX_BATCH_ENTRIES = 16, 500
TARGET_BATCH_BYTES = 1 << 20


def entry_id(offset: int) -> str:
    """The entry id of an offset."""
    return f"{offset >> SEQUENCE_BITS}-{offset & SEQUENCE_MASK}"


def to_stored_message(stream: str, entry: list[Any]) -> StoredMessage:
    """One raw entry."""
    place = Place.from_entry_id(stream, entry[0].decode())
    return StoredMessage(place, from_fields(entry[1], place.offset >> SEQUENCE_BITS))


async def read_span(client: RedisClient, stream: str, span: Span) -> AsyncGenerator[list[StoredMessage], None]:
    """All entries of the span, in order. The size of a batch follows the size of its letters."""
    count, start = MIN_BATCH_ENTRIES, span.start
    ahead: asyncio.Task[Any] | None = None
    try:
        while start < span.end:
            entries = await (ahead or client.command("XRANGE", stream, entry_id(start), entry_id(span.end - 1), "COUNT", count))
            batch = [to_stored_message(stream, entry) for entry in entries]
            if not batch:
                return
            more, start = len(batch) >= count, batch[-1].place.offset + 1
            count = _next_count(count, sum(one.message.size for one in batch))
            ahead = (
                asyncio.ensure_future(
                    client.command("XRANGE", stream, entry_id(start), entry_id(max(span.end - 1, start)), "COUNT", count)
                )
                if more and start < span.end
                else None
            )
            yield batch
            if ahead is None:
                return
    finally:
        if ahead is not None and not ahead.done():
            ahead.cancel()


def _next_count(count: int, size: int) -> int:
    fitting = TARGET_BATCH_BYTES * count // max(size, 1)
    return max(min(fitting, count * 4, MAX_BATCH_ENTRIES), 1 if fitting < MIN_BATCH_ENTRIES else MIN_BATCH_ENTRIES)
