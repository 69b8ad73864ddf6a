"""Where a consumer group of a stream begins, and whether it lost its position."""

from typing import Any

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.group_offsets import EARLIEST, LATEST, StartPosition, offsets_lost
from deadletter.brokers.redis import streams
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.types import ResumedGroup, SubscriptionSpec
from deadletter.core.letters import SEQUENCE_MASK, Place

START_IDS: dict[str, str] = {EARLIEST: "0", LATEST: "$"}


async def ensure_group(client: RedisClient, spec: SubscriptionSpec) -> None:
    """Make the group if need be, and the stream too: it is born by its first message, which a late group would miss."""
    start = "0" if spec.from_earliest else "$"
    if spec.has_started:
        if await is_lost(client, spec.source, spec.group):
            raise offsets_lost(spec.source, spec.group)
        start = "0"
    await streams.create_group(client, spec.source, spec.group, start)


async def recreate_group(client: RedisClient, spec: SubscriptionSpec, last: str | None) -> None:
    """Make a group that vanished under an open desk, if the stream holds nothing that was read (`last`: up to it)."""
    told = await streams.describe_stream(client, spec.source)
    first = told[b"first-entry"] if told else None
    has_read = first is not None and (last is None or _offset_of(first[0].decode()) <= _offset_of(last))
    if has_read and await is_lost(client, spec.source, spec.group):
        raise offsets_lost(spec.source, spec.group)
    await streams.create_group(client, spec.source, spec.group, "0")


async def is_lost(client: RedisClient, source: str, group: str) -> bool:
    """True if the stream holds messages and the group does not exist."""
    told = await streams.describe_stream(client, source)
    if told is None or not told[b"length"]:
        return False
    groups: list[list[Any]] = await client.command("XINFO", "GROUPS", source)
    names = [dict(zip(one[::2], one[1::2], strict=True))[b"name"] for one in groups]
    return group.encode() not in names


async def resume(client: RedisClient, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
    """Make the group at that position."""
    if not await is_lost(client, source, group):
        return None
    length: int = await client.command("XLEN", source)
    try:
        await client.command("XGROUP", "CREATE", source, group, START_IDS.get(str(start)) or _last_id_before(int(start)))
    except BrokerError as error:
        if str(error.__cause__).startswith("BUSYGROUP"):
            return None
        raise
    return {EARLIEST: ResumedGroup(0, length), LATEST: ResumedGroup(length, 0)}.get(
        str(start), ResumedGroup(None, None)
    )


def _last_id_before(ms: int) -> str:
    """Return the last id before this time: a group reads what comes after its id."""
    return f"{ms - 1}-{SEQUENCE_MASK}" if ms > 0 else "0"


def _offset_of(entry: str) -> int:
    return Place.from_entry_id("", entry).offset
