"""Read envelopes in the fields of a Redis stream entry."""

from deadletter.core.dialects.base import Dialect, HeaderFields
from deadletter.core.letters import Confidence, Envelope, Place

_DEAD_STREAM_SUFFIXES = (".dlq", "-dlq")


def _is_redis_entry(fields: HeaderFields) -> bool:
    return "times_delivered" in fields.last or fields.place.box.endswith(_DEAD_STREAM_SUFFIXES)


def _derive_origin(fields: HeaderFields, envelope: Envelope) -> None:
    """Take the origin's topic from the stream's name, and its offset from the source entry id."""
    box, origin = fields.place.box, envelope.origin
    if box.endswith(_DEAD_STREAM_SUFFIXES):
        origin.topic = origin.topic or box[:-4]
    ms, found, seq = (envelope.id or "").partition("-")
    if found and ms.isascii() and ms.isdigit() and seq.isascii() and seq.isdigit():
        origin.partition, origin.offset = 0, Place.from_entry_id(box, envelope.id or "").offset
    envelope.hop = origin


REDIS_STREAMS = Dialect(
    name="redis-streams",
    markers=("times_delivered", "source_id"),
    detect=_is_redis_entry,
    confidence=Confidence.Likely,
    topic=("source_stream", "stream"),
    group=("group", "consumer_group"),
    attempts=("times_delivered", "delivery_count"),
    failed_at=("failed_at", "dead_lettered_at"),
    type=("error_type",),
    text=("error", "last_error"),
    id=("source_id",),
    strip_names=(
        "times_delivered",
        "delivery_count",
        "source_id",
        "idle",
        "source_stream",
        "error",
        "error_type",
        "last_error",
    ),
    is_exclusive=False,
    post_process=_derive_origin,
    derives_offset=True,
)
