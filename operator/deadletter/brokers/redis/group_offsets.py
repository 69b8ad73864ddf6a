"""Create consumer groups of streams, find out whether a group has lost its position, and resume it."""

from deadletter.brokers.errors import BrokerError
from deadletter.brokers.lost_offsets import EARLIEST, LATEST, StartPosition, offsets_lost_error
from deadletter.brokers.redis import stream_admin
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.types import ResumedGroup, SubscriptionSpec
from deadletter.core.letters import SEQUENCE_MASK, Place

FIRST_ID, NEW_MESSAGES_ID = "0", "$"  # as XGROUP CREATE takes them
START_IDS: dict[str, str] = {EARLIEST: FIRST_ID, LATEST: NEW_MESSAGES_ID}


async def ensure_group(client: RedisClient, spec: SubscriptionSpec) -> None:
    """Create the group and the stream if they are missing.

    The first message would create the stream; a group that is created later would miss that message.
    """
    start = FIRST_ID if spec.from_earliest else NEW_MESSAGES_ID
    if spec.has_started:
        if await is_lost(client, spec.source, spec.group):
            raise offsets_lost_error(spec.source, spec.group)
        start = FIRST_ID
    await stream_admin.create_group(client, spec.source, spec.group, start)


async def recreate_group(client: RedisClient, spec: SubscriptionSpec, last_read_id: str | None) -> None:
    """Create a group again that was deleted under an open subscription.

    GroupOffsetsLost: the stream still holds messages up to `last_read_id`, which would be delivered twice.
    """
    stream = await stream_admin.describe_stream(client, spec.source)
    first = stream[b"first-entry"] if stream else None
    holds_read_messages = first is not None and (
        last_read_id is None or _offset_of(first[0].decode()) <= _offset_of(last_read_id)
    )
    if holds_read_messages and await is_lost(client, spec.source, spec.group):
        raise offsets_lost_error(spec.source, spec.group)
    await stream_admin.create_group(client, spec.source, spec.group, FIRST_ID)


async def is_lost(client: RedisClient, source: str, group: str) -> bool:
    """True if the stream holds messages and the group does not exist."""
    stream = await stream_admin.describe_stream(client, source)
    if stream is None or not stream[b"length"]:
        return False
    return await stream_admin.describe_group(client, source, group) is None


async def resume(client: RedisClient, source: str, group: str, start: StartPosition) -> ResumedGroup | None:
    """Create a lost group at this position; None if it is not lost."""
    if not await is_lost(client, source, group):
        return None
    length: int = await client.command("XLEN", source)
    start_id = START_IDS.get(str(start)) or _last_id_before(int(start))
    try:
        await client.command("XGROUP", "CREATE", source, group, start_id)
    except BrokerError as error:
        if stream_admin.is_existing_group(error):
            return None
        raise
    resumed = {EARLIEST: ResumedGroup(0, length), LATEST: ResumedGroup(length, 0)}
    return resumed.get(str(start), ResumedGroup(None, None))


def _last_id_before(ms: int) -> str:
    """Return the last id before this time, because a group reads the entries after its id."""
    return f"{ms - 1}-{SEQUENCE_MASK}" if ms > 0 else FIRST_ID


def _offset_of(entry_id: str) -> int:
    return Place.from_entry_id("", entry_id).offset
