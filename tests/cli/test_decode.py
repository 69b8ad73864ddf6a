"""The door `decode`: what is this letter?"""

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


def test_a_letter_is_described():
    told = decode.envelope_fields(_line(SPRING))
    assert (told["dialect"], told["confidence"]) == ("spring-dlt", "Certain")
    assert told["origin"] == {"topic": "orders", "partition": 3, "offset": 42, "timestamp": None}
    assert told["error"] == {
        "type": "java.net.SocketTimeoutException",
        "message": "",
        "category": "Network",
        "status": None,
    }
    assert told["replayHeaders"] == [["traceparent", _b64(b"00-1")], ["none", None]]
    assert (told["attempts"], told["failedAt"], len(told["fingerprint"])) == (0, None, 8)


def test_an_origin_on_redis_is_told_by_its_entry():
    headers = [("dlq-origin-topic", b"orders"), ("dlq-origin-offset", b"1794990614608-5"), ("dlq-id", b"o")]
    told = decode.envelope_fields(_line(headers))
    assert orjson.loads(orjson.dumps(told))["origin"]["offset"] == "1794990614608-5"


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not s.pinned and s.place.offset < 1 << 64], ids=str)
def test_every_dialect_is_told(sample):
    told = decode.envelope_fields(_of_sample(sample))
    assert told["dialect"] == sample.dialect
    assert orjson.loads(orjson.dumps(told)) == told


def test_a_dialect_may_be_pinned_and_an_origin_given():
    told = decode.envelope_fields(_line([], dialect="kafka-connect-bare", origin="orders"))
    assert (told["dialect"], told["confidence"], told["origin"]["topic"]) == ("kafka-connect-bare", "Pinned", "orders")
    assert decode.envelope_fields(_line([]), "kafka-connect-bare")["confidence"] == "Pinned"


def test_values_may_be_left_alone():
    sample = next(sample for sample in SAMPLES if str(sample) == "pipestream-plain")
    line = orjson.dumps(orjson.loads(_of_sample(sample)) | {"readValues": False})
    assert decode.envelope_fields(line)["dialect"] == "none"


def test_a_pointer_is_told():
    headers = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.offset", b"3")]
    assert decode.envelope_fields(_line(headers, value=None))["pointer"] is True


@pytest.mark.parametrize(
    "line",
    [b"secret", b"[1]", b'{"value": "not base64 secret!"}', b'{"headers": [["secret"]]}', b'{"dialect": "secret"}'],
)
def test_a_line_that_is_no_letter_is_told_without_what_it_holds(line, capsys):
    assert decode.print_envelopes([_line(SPRING), b"\n", line, _line([])]) == 1
    out, err = capsys.readouterr()
    assert [orjson.loads(told)["dialect"] for told in out.splitlines()] == ["spring-dlt", "none"]
    assert err == f"line 3: {decode.MALFORMED}\n"


def test_the_role_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(_line(SPRING) + b"\n" + _line([]))))
    assert run(["decode"]) == 0
    told = [orjson.loads(line)["dialect"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["spring-dlt", "none"]


def test_the_dialects_are_listed(capsys):
    assert run(["decode", "--list"]) == 0
    assert tuple(capsys.readouterr().out.split()) == DIALECT_NAMES
