"""Tests that a dialect's claims about topic and offset agree with its sample letters."""

import pytest

from deadletter.core.dialects.reader import read_envelope
from deadletter.core.dialects.registry import DIALECT_NAMES, names_offset, names_topic
from tests.core.fixtures import SAMPLES


def _origins(dialect):
    letters = (sample for sample in SAMPLES if sample.dialect == dialect)
    return [read_envelope(sample.message, sample.place, dialect).origin for sample in letters]


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
def test_a_dialect_names_a_topic_if_its_letters_do(dialect):
    assert names_topic(dialect) == any(origin.topic is not None for origin in _origins(dialect))


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
def test_a_dialect_names_an_offset_if_its_letters_do(dialect):
    assert names_offset(dialect) or all(origin.offset is None for origin in _origins(dialect))


def test_auto_may_name_topic_and_offset():
    assert names_topic("Auto")
    assert names_offset("Auto")
    assert not any(names_offset(dialect) for dialect in ("none", "kafka-connect-bare", "watermill", "cronsumer"))
