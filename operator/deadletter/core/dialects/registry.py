"""All dialects, ordered from the most specific to the last resort; register a new dialect here."""

from deadletter.core import headers
from deadletter.core.dialects import (
    avro_envelopes,
    frameworks,
    generic,
    json_envelope,
    kafka,
    knative,
    protobuf_envelopes,
    redis_streams,
    spring,
)
from deadletter.core.dialects.base import AUTO, Dialect, HeaderFields
from deadletter.core.letters import Confidence, Envelope


def _read_own_headers(fields: HeaderFields) -> Envelope | None:
    return headers.read_headers(fields.last)


OURS = Dialect(
    name="ours",
    markers=headers.DETECTION_HEADERS,
    strip_names=headers.OUR_HEADERS,
    read_value=_read_own_headers,
    derives_topic=True,
    derives_offset=True,
)
NONE = Dialect(name="none", confidence=Confidence.Unknown)
DIALECTS: tuple[Dialect, ...] = (
    OURS,
    *kafka.DIALECTS,
    *spring.DIALECTS,
    *frameworks.DIALECTS,
    *generic.DIALECTS,
    knative.KNATIVE,
    json_envelope.JSON_ENVELOPE,
    redis_streams.REDIS_STREAMS,
    *protobuf_envelopes.DIALECTS,
    *avro_envelopes.DIALECTS,
    generic.GENERIC,
    NONE,
)
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
DIALECT_NAMES: tuple[str, ...] = tuple(BY_NAME)
VALUE_DIALECTS = (*protobuf_envelopes.DIALECTS, *avro_envelopes.DIALECTS, knative.KNATIVE, json_envelope.JSON_ENVELOPE)
_RANKS = {dialect.name: rank for rank, dialect in enumerate(DIALECTS)}


def _ranks_by_marker() -> dict[str, tuple[int, ...]]:
    ranks: dict[str, tuple[int, ...]] = {}
    for rank, dialect in enumerate(DIALECTS):
        for marker in dialect.markers:
            ranks[marker] = (*ranks.get(marker, ()), rank)
    return ranks


RANKS_BY_MARKER = _ranks_by_marker()
GENERIC_RANK = _RANKS[generic.GENERIC.name]


def names_topic(dialect: str) -> bool:
    """True if letters of this dialect may name the topic they came from; always with Auto."""
    return dialect == AUTO or BY_NAME[dialect].names_topic


def names_offset(dialect: str) -> bool:
    """True if letters of this dialect may name their offset, so that one that fails again is recognised."""
    return dialect == AUTO or BY_NAME[dialect].names_offset
