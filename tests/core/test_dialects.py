"""Tests that each dialect is detected, read and restored from its own letters only."""

import itertools
from collections import Counter
from dataclasses import replace
from operator import attrgetter

import pytest

from deadletter.core.dialects.base import DialectError, HeaderFields
from deadletter.core.dialects.reader import is_pointer, read_envelope, read_letter, read_letter_summary, restore_message
from deadletter.core.dialects.registry import DIALECT_NAMES, DIALECTS, VALUE_DIALECTS
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Confidence, Message, Place
from tests.core.fixtures import SAMPLES
from tests.core.fixtures.base import USER_HEADERS, Sample, i64, texts

PLACE = Place("orders.dlq", 0, 1)


def _read(sample: Sample, **options: object):
    dialect = sample.dialect if sample.pinned else "Auto"
    return read_envelope(sample.message, sample.place, dialect, read_values=True, **options)


def test_every_dialect_has_three_samples():
    counts = Counter(sample.dialect for sample in SAMPLES)
    assert {name: counts[name] for name in DIALECT_NAMES if counts[name] < 3} == {}
    assert set(counts) == set(DIALECT_NAMES)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_letter_is_read_in_its_own_dialect(sample):
    envelope = _read(sample)
    assert envelope.dialect == sample.dialect
    assert {name: attrgetter(name)(envelope) for name in sample.wants} == sample.wants


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_pinned_dialect_reads_the_same_as_the_detected_one(sample):
    pinned = read_envelope(sample.message, sample.place, sample.dialect)
    assert pinned.confidence is Confidence.Pinned
    assert replace(pinned, confidence=_read(sample).confidence) == _read(sample)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.headers and not s.pinned], ids=str)
def test_the_order_of_headers_around_it_does_not_matter(sample):
    message = replace(sample.message, headers=(*USER_HEADERS, *sample.headers))
    assert read_envelope(message, sample.place, read_values=True) == _read(sample)


# Dialects that may also match a letter, always after its own dialect, because they share header names.
OVERLAPS = {
    "ibm-mq-source": {"kafka-connect"},
    "spring-retry-topic": {"spring-dlt"},
    "spring-cloud-stream": {"generic-x"},
    "cronsumer": {"generic-x"},
    "retry-dlq-design": {"generic-x"},
    "ours": {"generic-x"},
}


def _matching_dialects(sample: Sample) -> list[str]:
    fields = HeaderFields(sample.message, sample.place)
    marked = [
        dialect.name
        for dialect in DIALECTS
        if any(marker in fields.last for marker in dialect.markers) and dialect.matches(fields)
    ]
    return marked + [
        dialect.name for dialect in VALUE_DIALECTS if dialect.name not in marked and dialect.read_value(fields)
    ]


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.dialect != "none"], ids=str)
def test_no_other_dialect_matches_first(sample):
    matching = _matching_dialects(sample)
    if sample.pinned:
        assert matching == []
    else:
        assert matching[0] == sample.dialect
        assert set(matching) - {sample.dialect} <= OVERLAPS.get(sample.dialect, set())


@pytest.mark.parametrize("pin", ["", "pinned"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_summary_agrees_with_a_full_read(sample, pin):
    """With repeated headers, replays and a configured origin, too."""
    dialect = sample.dialect if sample.pinned or pin else "Auto"
    added = (("dlq-replays", b"2"), *sample.headers)
    for more, origin in itertools.product(((), added), ("fallback", None)):
        message = replace(sample.message, headers=(*more, *sample.headers))
        summary = read_letter_summary(message, sample.place, dialect, True, origin).envelope
        read = read_envelope(message, sample.place, dialect, True, origin)
        assert (summary.dialect, summary.confidence) == (read.dialect, read.confidence)
        assert fingerprint(summary.failure) == fingerprint(read.failure)
        assert (summary.id, summary.replays) == (read.id, read.replays)
        for place, whole in ((summary.origin, read.origin), (summary.hop, read.hop)):
            assert (place.topic, place.partition, place.offset) == (whole.topic, whole.partition, whole.offset)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_summary_for_counting_agrees_with_a_full_read(sample):
    dialect = sample.dialect if sample.pinned else "Auto"
    for more, origin in itertools.product(((), (("dlq-replays", b"2"),)), ("fallback", None)):
        message = replace(sample.message, headers=(*sample.headers, *more))
        summary = read_letter_summary(message, sample.place, dialect, True, origin, to_send=False).envelope
        read = read_envelope(message, sample.place, dialect, True, origin)
        assert (summary.dialect, summary.replays, summary.origin.topic) == (
            read.dialect,
            read.replays,
            read.origin.topic,
        )
        assert fingerprint(summary.failure) == fingerprint(read.failure)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_no_dialect_raises_on_any_letter(sample):
    for name in DIALECT_NAMES:
        read_letter(sample.message, sample.place, name, read_values=True, origin="fallback")


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_replay_strips_the_envelope_and_keeps_the_users_headers(sample):
    envelope = _read(sample)
    try:
        message = restore_message(sample.message, envelope)
    except DialectError:
        return
    kept = [header for header in message.headers if header in USER_HEADERS]
    assert kept == list(USER_HEADERS)
    names = {name for name, _ in message.headers}
    assert names - {name for name, _ in USER_HEADERS} <= {"content-type", "a", "ce_id"}
    again = read_envelope(message, PLACE)
    assert (again.dialect, again.attempts, again.origin.topic) == ("none", 0, None)


@pytest.mark.parametrize(
    ("label", "key", "value"),
    [
        ("uber-protobuf-key-plain", b"the key", b"value"),
        ("uber-protobuf-key-missing", None, b"value"),
        ("pipestream-plain", b"key", b"\x0a\x02hi"),
        ("pipestream-missing", None, b""),
        ("kstreamplify-plain", b"k", b"v"),
        ("kstreamplify-repeated", b"key", b"raw"),
        ("json-envelope-mailbox", b"key", b'{"a": 1.10, "big": 123456789012345678901234567890}'),
        ("json-envelope-task", b"key", b'{"type": "sweep"}'),
        ("json-envelope-redis-entry", None, b'{"a":1}'),
        ("knative-structured", b"key", b'{"specversion":"1.0","id":"e1","data":{"n":1.0}}'),
        ("knative-binary", b"key", b"value"),
        ("spring-dlt-plain", b"key", b"value"),
    ],
)
def test_replay_restores_the_original_bytes(label, key, value):
    sample = next(sample for sample in SAMPLES if str(sample) == label)
    message = restore_message(sample.message, _read(sample))
    assert (message.key, message.value, message.timestamp) == (key, value, sample.message.timestamp)


@pytest.mark.parametrize("label", ["bakdata-avro-plain", "kafka-share-group-pointer"])
def test_a_letter_without_the_original_cannot_be_restored(label):
    sample = next(sample for sample in SAMPLES if str(sample) == label)
    with pytest.raises(DialectError):
        restore_message(sample.message, _read(sample))


@pytest.mark.parametrize("name", ["uber-protobuf-key", "pipestream", "kstreamplify", "json-envelope"])
def test_a_pinned_dialect_that_does_not_match_is_reported(name):
    message = Message(b"\xff", b"\xff\xff", ())
    envelope = read_envelope(message, PLACE, name)
    assert (envelope.dialect, envelope.confidence) == (name, Confidence.Unknown)
    with pytest.raises(DialectError):
        restore_message(message, envelope)


def test_a_kafka_error_without_the_original_bytes_is_not_restored():
    from tests.core.fixtures.binary import kafka_error

    message = Message(None, kafka_error("x.E: no", None, "orders", "app", None, None, None, None))
    with pytest.raises(DialectError, match="original bytes"):
        restore_message(message, read_envelope(message, PLACE, read_values=True))


def test_a_value_that_a_rule_rewrote_is_not_replayed():
    message = Message(None, b'{"a": 1}', texts("__rule.", name="r", topic="t"))
    with pytest.raises(DialectError, match="serialise it with the schema again"):
        restore_message(message, read_envelope(message, PLACE))


def test_a_pointer_is_not_a_tombstone():
    headers = texts("__dlq.errors.", topic="orders", partition=1, offset=2)
    pointer, tombstone = Message(None, None, headers), Message(b"key", None, headers)
    assert is_pointer(pointer, read_envelope(pointer, PLACE))
    assert not is_pointer(tombstone, read_envelope(tombstone, PLACE))
    assert restore_message(tombstone, read_envelope(tombstone, PLACE)).value is None


def test_values_are_read_only_if_the_queue_allows_it():
    sample = next(sample for sample in SAMPLES if str(sample) == "pipestream-plain")
    assert read_envelope(sample.message, sample.place).dialect == "none"


def test_a_value_dialect_beats_the_generic_names():
    sample = next(sample for sample in SAMPLES if str(sample) == "pipestream-plain")
    message = replace(sample.message, headers=texts(x_error="boom"))
    assert read_envelope(message, PLACE).dialect == "generic-x"
    assert read_envelope(message, PLACE, read_values=True).dialect == "pipestream"
    assert read_envelope(replace(message, value=b"x"), PLACE, read_values=True).dialect == "generic-x"


def test_the_queues_origin_is_used_if_the_letter_names_none():
    message = Message(
        None, None, texts("original_", partition=1) + (("original_partition", b"1"), ("original_offset", b"2"))
    )
    envelope = read_envelope(message, PLACE, origin="orders")
    assert (envelope.origin.topic, envelope.origin.partition, envelope.hop.topic) == ("orders", 1, "orders")


def test_a_returned_letter_still_names_its_replay():
    message = Message(None, b"v", (*texts("kafka_dlt-", original_topic="o"), *texts("dlq-", replays=2, replay="uid")))
    envelope = read_envelope(message, PLACE)
    assert (envelope.dialect, envelope.replays, envelope.replay) == ("spring-dlt", 2, "uid")


def test_spring_cloud_stream_needs_binary_numbers():
    headers = texts("x-original-", topic="orders", partition=1234, offset=12345678)
    assert read_envelope(Message(None, None, headers), PLACE).dialect == "generic-x"
    binary = (("x-original-topic", b"orders"), ("x-original-offset", i64(5)))
    assert read_envelope(Message(None, None, binary), PLACE).dialect == "spring-cloud-stream"


def test_an_unknown_dialect_is_rejected():
    with pytest.raises(ValueError, match="unknown dialect"):
        read_envelope(Message(None, None), PLACE, "klingon")


def test_an_unknown_dialect_of_an_envelope_strips_our_headers():
    envelope = replace(read_envelope(Message(None, None), PLACE), dialect="later")
    message = Message(b"k", b"v", (*texts("dlq-", attempts=1), ("x-death", b"1"), ("mine", None)))
    assert restore_message(message, envelope).headers == (("mine", None),)
