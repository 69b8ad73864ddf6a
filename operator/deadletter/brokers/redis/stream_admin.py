"""Create, describe and delete streams and retry boxes. The operator never trims a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from deadletter.brokers.errors import BoxAppeared, BoxConflict, BoxMissing, BrokerError, NotSupported
from deadletter.brokers.redis import keys as key_names
from deadletter.brokers.redis import ledger
from deadletter.brokers.redis.client import RedisClient, raise_first, to_dict
from deadletter.brokers.redis.scripts import CREATE
from deadletter.brokers.types import BoxState
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Place
from deadletter.core.names import archive_name
from deadletter.core.replay_progress import Span

MIN_MAJOR_VERSION = 7


@dataclass(slots=True, frozen=True)
class RedisVersion:
    """Version and mode of a server as INFO reports them."""

    version: str
    mode: str


async def read_version(client: RedisClient) -> RedisVersion:
    """Read version and mode; NotSupported if the server is too old or not standalone."""
    lines = (await client.command("INFO", "server")).decode().splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    found = RedisVersion(
        info.get("valkey_version") or info.get("redis_version", ""), info.get("redis_mode", "standalone")
    )
    if found.mode != "standalone":
        raise NotSupported(f"this Redis runs in mode {found.mode}, which is not supported yet; use a standalone Redis")
    major = found.version.split(".")[0]
    if major.isdigit() and int(major) < MIN_MAJOR_VERSION:
        raise NotSupported(f"Redis {found.version} is too old; use version {MIN_MAJOR_VERSION} or newer")
    return found


async def describe(client: RedisClient, names: Sequence[str]) -> Mapping[str, BoxState]:
    """Return the boxes among these names, also keys of another type, because their names are not free."""
    commands = [
        (command, key) for name in names for command, key in (("TYPE", name), ("GET", key_names.identity(name)))
    ]
    replies = await client.commands(commands)
    types = raise_first(replies[::2])
    found = zip(names, types, replies[1::2], strict=True)
    return {name: BoxState(name, id=_id_of(reply)) for name, type_, reply in found if type_ != b"none"}


def _id_of(reply: Any) -> str:
    """Return the id; empty for boxes of release 0.2.0 or of others, and if the user may not read the key."""
    return reply.decode() if isinstance(reply, bytes) else ""


async def ensure(client: RedisClient, spec: BoxSpec) -> BoxState:
    """Create a stream or retry box if it is missing. A stream has neither partitions nor retention."""
    type_: bytes = await client.command("TYPE", spec.name)
    required = "hash" if spec.is_retry_box else "stream"
    if type_ == b"none" and spec.adopt:
        raise BoxMissing(f"stream {spec.name} does not exist and is to be adopted; create it first")
    is_created = False
    if type_ == b"none":
        keys = [spec.name, key_names.identity(spec.name)]
        is_created = await client.run_script(CREATE, keys, [uuid4().hex, required])
    elif type_ != required.encode():
        raise BoxConflict(f"key {spec.name} holds a {type_.decode()}, not a {required}")
    if spec.must_be_new and not is_created:
        raise BoxAppeared(f"{spec.name}: another client created it at the same moment")
    (reply,) = await client.commands([("GET", key_names.identity(spec.name))])
    return BoxState(spec.name, id=_id_of(reply))


async def create_group(client: RedisClient, stream: str, group: str, start_id: str) -> None:
    """Create a consumer group, and an empty stream if it is missing. An existing group is not changed."""
    try:
        await client.command("XGROUP", "CREATE", stream, group, start_id, "MKSTREAM")
    except BrokerError as error:
        if not is_existing_group(error):
            raise


def is_existing_group(error: BrokerError) -> bool:
    """True if Redis refused to create a group because it exists."""
    return str(error.__cause__).startswith("BUSYGROUP")


async def delete(client: RedisClient, names: Sequence[str]) -> None:
    """Delete boxes and ledgers with every key that belongs to them."""
    for name in names:
        archive = archive_name(name)
        siblings = (key_names.marks, key_names.fence, key_names.due, key_names.holders, key_names.published)
        keys = [name, archive, *(sibling(name) for sibling in (*siblings, key_names.identity, key_names.lost))]
        keys += [key_names.fence(archive), key_names.marks(archive)]
        for uid in await ledger.replay_uids(client, name):
            keys += [key_names.selected(name, uid), key_names.produced(name, uid)]
        await client.command("UNLINK", *keys)


async def window(client: RedisClient, stream: str, optional: bool = False) -> Span:
    """Return the offsets that a stream holds; an `optional` stream that does not exist is empty."""
    found = await describe_stream(client, stream)
    if found is None and not optional:
        raise BoxMissing(f"stream {stream} does not exist")
    if found is None:
        return Span(0, 0, 0)
    end = Place.from_entry_id(stream, found[b"last-generated-id"].decode()).offset + 1
    first = found[b"first-entry"]
    return Span(0, Place.from_entry_id(stream, first[0].decode()).offset if first else end, end)


async def describe_stream(client: RedisClient, stream: str) -> dict[bytes, Any] | None:
    """Return the reply to XINFO STREAM; None if the stream does not exist."""
    try:
        return to_dict(await client.command("XINFO", "STREAM", stream))
    except BrokerError as error:
        if str(error.__cause__).startswith("no such key"):
            return None
        raise


async def describe_group(client: RedisClient, stream: str, group: str) -> dict[bytes, Any] | None:
    """Return the reply to XINFO GROUPS for one consumer group; None if the group does not exist."""
    groups = [to_dict(reply) for reply in await client.command("XINFO", "GROUPS", stream)]
    return next((found for found in groups if found[b"name"] == group.encode()), None)
