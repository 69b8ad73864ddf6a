"""The environment of a worker: its assignment, live.json and its termination message."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from deadletter.api.worker_config import CourierAssignment
from deadletter.workers import live_config
from deadletter.workers.environment import MAX_TERMINATION_MESSAGE_BYTES, AssignmentError, WorkerEnvironment
from deadletter.workers.live_config import LiveConfigFile
from tests.workers.couriers import courier_assignment
from tests.workers.http_service import until


def environment(folder: Path) -> WorkerEnvironment:
    return WorkerEnvironment.from_environment(
        {"DLQ_ASSIGNMENT_DIR": str(folder), "DLQ_TERMINATION_LOG": str(folder / "end"), "POD_NAME": "pod-7"}
    )


def test_a_written_assignment_is_read(tmp_path: Path):
    assignment = courier_assignment("http://shop.test/")
    (tmp_path / "assignment.json").write_text(assignment.model_dump_json(by_alias=True, exclude_none=True))
    assert environment(tmp_path).read_assignment(CourierAssignment) == assignment
    assert environment(tmp_path).pod == "pod-7"


def test_a_missing_assignment_is_an_error(tmp_path: Path):
    with pytest.raises(AssignmentError, match="cannot be read"):
        environment(tmp_path).read_assignment(CourierAssignment)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"canary-4711"', "\udcff"])
def test_an_invalid_assignment_is_an_error_that_quotes_no_value(tmp_path: Path, text: str):
    (tmp_path / "assignment.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(AssignmentError) as caught:
        environment(tmp_path).read_assignment(CourierAssignment)
    assert "canary" not in str(caught.value)


def test_an_invalid_field_is_named_and_its_value_is_not_quoted(tmp_path: Path):
    assignment = json.loads(courier_assignment("http://shop.test/").model_dump_json(by_alias=True, exclude_none=True))
    assignment["delivery"]["concurrency"] = "canary-4711"
    (tmp_path / "assignment.json").write_text(json.dumps(assignment))
    with pytest.raises(AssignmentError, match="concurrency") as caught:
        environment(tmp_path).read_assignment(CourierAssignment)
    assert "canary" not in str(caught.value)


def test_the_termination_message_is_one_json_object_of_limited_size(tmp_path: Path):
    place = environment(tmp_path)
    place.write_termination_message("BoxMissing", "x" * 10_000, tallies=["y" * 10_000])
    content = (tmp_path / "end").read_bytes()
    assert len(content) <= MAX_TERMINATION_MESSAGE_BYTES
    assert json.loads(content)["reason"] == "BoxMissing"


def test_a_termination_message_that_cannot_be_written_is_ignored(tmp_path: Path):
    environment(tmp_path / "nowhere").write_termination_message("BoxMissing")


def test_a_missing_live_file_pauses_nothing_and_a_new_one_is_read(tmp_path: Path):
    file = LiveConfigFile(tmp_path)
    assert file.current.paused == ""
    (tmp_path / "live.json").write_text('{"paused": "CapacityReached"}')
    assert file.refresh().paused == "CapacityReached"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"paused": 3}'])
def test_an_invalid_live_file_keeps_the_previous_settings(tmp_path: Path, text: str):
    (tmp_path / "live.json").write_text('{"paused": "Suspended"}')
    file = LiveConfigFile(tmp_path)
    (tmp_path / "live.json").write_text(text)
    assert file.refresh().paused == "Suspended"
    (tmp_path / "live.json").unlink()
    assert file.refresh().paused == "Suspended"
    (tmp_path / "live.json").write_text("{}")
    assert file.refresh().paused == ""


async def test_the_live_file_is_refreshed_while_the_worker_runs(tmp_path: Path):
    file = LiveConfigFile(tmp_path)
    with patch.object(live_config, "REFRESH_INTERVAL_S", 0.01):
        async with file.refreshing():
            (tmp_path / "live.json").write_text('{"paused": "Suspended"}')
            await until(lambda: file.current.paused == "Suspended")
            (tmp_path / "live.json").write_text("{}")
            await until(lambda: file.current.paused == "")
