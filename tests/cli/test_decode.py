"""The command `decode` prints the envelope of a letter."""

import io
import sys
from base64 import b64encode
from types import SimpleNamespace

import orjson
import pytest

from deadletter.__main__ import main as run
from deadletter.cli import decode
from deadletter.core.dialects.registry import DIALECT_NAMES
from tests.core.fixtures import SAMPLES
from tests.core.fixtures.base import Sample, i32, i64


def _b64(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()


def _line(headers: list[tuple[str, bytes | None]], **more: object) -> bytes:
    given = {"topic": "orders.dlq", "partition": 1, "offset": 7, "timestamp": 1_700_000_000_000, "key": None}
    given |= {"value": _b64(b"v"), "headers": [[name, _b64(value)] for name, value in headers]}
    return orjson.dumps(given | more)


def _of_sample(sample: Sample) -> bytes:
    message = sample.message
    return _line(list(message.headers), key=_b64(message.key), value=_b64(message.value), topic=sample.place.box)


SPRING = [
    ("traceparent", b"00-1"),
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", i32(3)),
    ("kafka_dlt-original-offset", i64(42)),
    ("kafka_dlt-exception-fqcn", b"java.net.SocketTimeoutException"),
    ("none", None),
]


def test_an_envelope_has_all_fields():
    envelope = decode.envelope_fields(_line(SPRING))
    assert (envelope["dialect"], envelope["confidence"]) == ("spring-dlt", "Certain")
    assert envelope["origin"] == {"topic": "orders", "partition": 3, "offset": 42, "timestamp": None}
    assert envelope["error"] == {
        "type": "java.net.SocketTimeoutException",
        "message": "",
        "category": "Network",
        "status": None,
    }
    assert envelope["replayHeaders"] == [["traceparent", _b64(b"00-1")], ["none", None]]
    assert (envelope["attempts"], envelope["failedAt"], len(envelope["fingerprint"])) == (0, None, 8)


def test_an_origin_on_redis_is_an_entry_id():
    headers = [("dlq-origin-topic", b"orders"), ("dlq-origin-offset", b"1794990614608-5"), ("dlq-id", b"o")]
    envelope = decode.envelope_fields(_line(headers))
    assert orjson.loads(orjson.dumps(envelope))["origin"]["offset"] == "1794990614608-5"


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not s.pinned and s.place.offset < 1 << 64], ids=str)
def test_every_dialect_is_printed(sample):
    envelope = decode.envelope_fields(_of_sample(sample))
    assert envelope["dialect"] == sample.dialect
    assert orjson.loads(orjson.dumps(envelope)) == envelope


def test_a_line_may_set_dialect_and_origin():
    envelope = decode.envelope_fields(_line([], dialect="kafka-connect-bare", origin="orders"))
    assert (envelope["dialect"], envelope["confidence"], envelope["origin"]["topic"]) == (
        "kafka-connect-bare",
        "Pinned",
        "orders",
    )
    assert decode.envelope_fields(_line([]), "kafka-connect-bare")["confidence"] == "Pinned"


def test_values_are_not_read_if_the_line_says_so():
    sample = next(sample for sample in SAMPLES if str(sample) == "pipestream-plain")
    line = orjson.dumps(orjson.loads(_of_sample(sample)) | {"readValues": False})
    assert decode.envelope_fields(line)["dialect"] == "none"


def test_a_letter_without_a_value_that_names_its_offset_is_a_pointer():
    headers = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.offset", b"3")]
    assert decode.envelope_fields(_line(headers, value=None))["pointer"] is True


@pytest.mark.parametrize(
    "line",
    [b"secret", b"[1]", b'{"value": "not base64 secret!"}', b'{"headers": [["secret"]]}', b'{"dialect": "secret"}'],
)
def test_a_malformed_line_is_reported_without_its_content(line, capsys):
    assert decode.print_envelopes([_line(SPRING), b"\n", line, _line([])]) == 1
    out, err = capsys.readouterr()
    assert [orjson.loads(envelope)["dialect"] for envelope in out.splitlines()] == ["spring-dlt", "none"]
    assert err == f"line 3: {decode.MALFORMED}\n"


def test_the_command_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(_line(SPRING) + b"\n" + _line([]))))
    assert run(["decode"]) == 0
    envelope = [orjson.loads(line)["dialect"] for line in capsys.readouterr().out.splitlines()]
    assert envelope == ["spring-dlt", "none"]


def test_list_prints_the_dialects(capsys):
    assert run(["decode", "--list"]) == 0
    assert tuple(capsys.readouterr().out.split()) == DIALECT_NAMES
