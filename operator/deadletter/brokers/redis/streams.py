"""Streams and retry boxes: looked at, made, dropped. None is ever trimmed by us."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from deadletter.brokers.errors import BoxAppeared, BoxConflict, BoxMissing, BrokerError, NotSupported
from deadletter.brokers.redis import keys as names
from deadletter.brokers.redis import ledger
from deadletter.brokers.redis.client import RedisClient
from deadletter.brokers.redis.scripts import CREATE
from deadletter.brokers.types import BoxState
from deadletter.core.boxes import BoxSpec
from deadletter.core.letters import Place
from deadletter.core.names import archive_name
from deadletter.core.replay_progress import Span

MIN_MAJOR_VERSION = 7


@dataclass(slots=True, frozen=True)
class RedisVersion:
    """What INFO tells."""

    version: str
    mode: str


async def read_version(client: RedisClient) -> RedisVersion:
    """Version and mode; NotSupported when we cannot work with it."""
    lines = (await client.command("INFO", "server")).decode().splitlines()
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = RedisVersion(
        told.get("valkey_version") or told.get("redis_version", ""), told.get("redis_mode", "standalone")
    )
    if facts.mode != "standalone":
        raise NotSupported(f"this Redis runs in mode {facts.mode}; only standalone is supported yet")
    major = facts.version.split(".")[0]
    if major.isdigit() and int(major) < MIN_MAJOR_VERSION:
        raise NotSupported(f"Redis {facts.version} is too old; {MIN_MAJOR_VERSION} or newer is needed")
    return facts


async def describe(client: RedisClient, boxes: Sequence[str]) -> Mapping[str, BoxState]:
    """The boxes among these names; a key of another type too, so that it is not taken for free."""
    asked = [(command, key) for box in boxes for command, key in (("TYPE", box), ("GET", names.identity(box)))]
    replies = await client.commands(asked)
    kinds = ledger.raise_first(replies[::2])
    found = zip(boxes, kinds, replies[1::2], strict=True)
    return {box: BoxState(box, id=_id(reply)) for box, kind, reply in found if kind != b"none"}


def _id(reply: Any) -> str:
    """The id in a reply to GET; none for boxes of 0.2.0, of others, and where the user may not read the key."""
    return reply.decode() if isinstance(reply, bytes) else ""


async def ensure(client: RedisClient, spec: BoxSpec) -> BoxState:
    """Make it if it is not there. Partitions and retention are no notions of a stream."""
    kind: bytes = await client.command("TYPE", spec.name)
    wanted = "hash" if spec.is_retry_box else "stream"
    if kind == b"none" and spec.adopt:
        raise BoxMissing(f"stream {spec.name} does not exist and is to be adopted; create it first")
    is_created = False
    if kind == b"none":
        is_created = await client.run_script(CREATE, [spec.name, names.identity(spec.name)], [uuid4().hex, wanted])
    elif kind != wanted.encode():
        raise BoxConflict(f"key {spec.name} holds a {kind.decode()}, not a {wanted}")
    if spec.must_be_new and not is_created:
        raise BoxAppeared(f"{spec.name}: others created it at the same moment")
    (reply,) = await client.commands([("GET", names.identity(spec.name))])
    return BoxState(spec.name, id=_id(reply))


async def create_group(client: RedisClient, stream: str, group: str, start: str) -> None:
    """A consumer group, and an empty stream if there is none; one that exists is left as it is."""
    try:
        await client.command("XGROUP", "CREATE", stream, group, start, "MKSTREAM")
    except BrokerError as error:
        if not str(error.__cause__).startswith("BUSYGROUP"):
            raise


async def delete(client: RedisClient, boxes: Sequence[str]) -> None:
    """Each box and every key beside it."""
    for box in boxes:
        keys = [box, archive_name(box), names.marks(box), names.fence(box), names.due(box), names.holders(box)]
        keys += [
            names.fence(archive_name(box)),
            names.marks(archive_name(box)),
            names.published(box),
            names.identity(box),
        ]
        keys += [names.lost(box)]
        for uid in await ledger.replay_uids(client, box):
            keys += [names.selected(box, uid), names.produced(box, uid)]
        await client.command("UNLINK", *keys)


async def window(client: RedisClient, stream: str, optional: bool = False) -> Span:
    """What lies in a stream now; an archive that was never needed is empty."""
    told = await describe_stream(client, stream)
    if told is None and not optional:
        raise BoxMissing(f"stream {stream} does not exist")
    if told is None:
        return Span(0, 0, 0)
    end = Place.from_entry_id(stream, told[b"last-generated-id"].decode()).offset + 1
    first = told[b"first-entry"]
    return Span(0, Place.from_entry_id(stream, first[0].decode()).offset if first else end, end)


async def describe_stream(client: RedisClient, stream: str) -> dict[bytes, Any] | None:
    """XINFO of a stream, or None if there is none."""
    try:
        told: list[Any] = await client.command("XINFO", "STREAM", stream)
    except BrokerError as error:
        if str(error.__cause__).startswith("no such key"):
            return None
        raise
    return dict(zip(told[::2], told[1::2], strict=True))
