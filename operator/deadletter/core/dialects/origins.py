"""What a dialect tells of a letter's origin, known before any letter is read."""

from deadletter.core.dialects.registry import TABLE

AUTO = "Auto"
# Read from a key, a value or the stream's own name, so no table of header names shows it.
_TOPICS = {"ours", "uber-protobuf-key", "pipestream", "kstreamplify", "bakdata-avro"}
_OFFSETS = {"ours", "redis-streams", "uber-protobuf-key", "kstreamplify", "bakdata-avro"}
_NAME_TOPIC = {AUTO, *_TOPICS, *(dialect.name for dialect in TABLE if dialect.topic)}
_NAME_OFFSET = {AUTO, *_OFFSETS, *(dialect.name for dialect in TABLE if dialect.offset)}


def names_topic(dialect: str) -> bool:
    """May its letters name the topic they came from? `Auto` may turn out to be any dialect."""
    return dialect in _NAME_TOPIC


def names_offset(dialect: str) -> bool:
    """May its letters name the offset they came from, so that one that was sent back and failed again is recognised?"""
    return dialect in _NAME_OFFSET
