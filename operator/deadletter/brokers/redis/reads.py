"""Read a range of a stream in bounded batches; the next batch is fetched while the caller processes the last one."""

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
    """Return the entry id of an offset."""
    return f"{offset >> SEQUENCE_BITS}-{offset & SEQUENCE_MASK}"


def to_stored_message(stream: str, entry: list[Any]) -> StoredMessage:
    """Convert one raw entry."""
    place = Place.from_entry_id(stream, entry[0].decode())
    return StoredMessage(place, from_fields(entry[1], place.offset >> SEQUENCE_BITS))


async def read_span(client: RedisClient, stream: str, span: Span) -> AsyncGenerator[list[StoredMessage], None]:
    """Read all entries of the span in order. The number of entries in a batch follows their size."""

    def fetch() -> "asyncio.Future[list[Any]]":
        last = entry_id(span.end - 1)
        return asyncio.ensure_future(client.command("XRANGE", stream, entry_id(start), last, "COUNT", count))

    count, start = MIN_BATCH_ENTRIES, span.start
    pending = fetch() if start < span.end else None
    try:
        while pending is not None:
            batch = [to_stored_message(stream, entry) for entry in await pending]
            pending = None
            if not batch:
                return
            is_full, start = len(batch) >= count, batch[-1].place.offset + 1
            count = _next_count(count, sum(stored.message.size for stored in batch))
            if is_full and start < span.end:
                pending = fetch()
            yield batch
    finally:
        if pending is not None and not pending.done():
            pending.cancel()


def _next_count(count: int, size: int) -> int:
    fitting = TARGET_BATCH_BYTES * count // max(size, 1)
    return max(min(fitting, count * 4, MAX_BATCH_ENTRIES), 1 if fitting < MIN_BATCH_ENTRIES else MIN_BATCH_ENTRIES)
