"""A bed whose owner is killed leaves nothing behind: the next look clears it away."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import beds, binaries, places, processes
from tests.bed.processes import BedError, Process

pytestmark = pytest.mark.server

OWNER = """
import sys, time
from tests.bed import beds, binaries, ports, processes
bed = beds.create()
bed.redis()
client, peer = (f"http://127.0.0.1:{port}" for port in ports.free("127.0.0.1", 2))
etcd = [binaries.path("etcd"), "--data-dir", bed.directory / "etcd", "--listen-client-urls", client,
        "--advertise-client-urls", client, "--listen-peer-urls", peer]
processes.start("etcd", etcd, bed.directory)
print(bed.directory, flush=True)
time.sleep(600)
"""


@pytest.fixture
def own_state(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(places.REPOSITORY)}


@pytest.fixture
def orphaned(own_state: dict[str, str]) -> Iterator[Path]:
    """The directory of a bed whose owner was killed while its programs ran."""
    binaries.path("etcd")
    owner = subprocess.Popen([sys.executable, "-c", OWNER], env=own_state, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    bed = Path(owner.stdout.readline().strip())
    owner.send_signal(signal.SIGKILL)
    owner.wait(60)
    yield bed
    processes.kill(processes.find_of_bed(bed))


def status(environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "tests.bed", "status"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


def test_status_clears_away_what_outlived_its_owner(orphaned: Path, own_state: dict[str, str]) -> None:
    assert processes.find_of_bed(orphaned, "redis")
    assert f"{orphaned.name}: its owner process had ended; removed" in status(own_state)
    assert not processes.find_of_bed(orphaned)
    assert not orphaned.exists()
    assert orphaned.name not in status(own_state)


def test_a_killed_part_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    bed = beds.create()
    try:
        bed.redis()
        processes.kill(processes.find_of_bed(bed.directory, "redis"))
        assert bed.redis().startswith("redis://")
        assert processes.find_of_bed(bed.directory, "redis")
    finally:
        bed.down()
    assert not processes.find_of_bed(bed.directory)


def test_a_pid_that_was_given_anew_is_not_ours(tmp_path: Path) -> None:
    record = tmp_path / "pids" / "redis"
    record.parent.mkdir()
    record.write_text(json.dumps({"pid": os.getpid(), "started": 1}))
    assert processes.read(record) == Process(os.getpid(), 1)
    assert processes.find_of_bed(tmp_path) == set()


def test_a_part_that_does_not_come_up_says_so() -> None:
    with pytest.raises(BedError, match="Redis: not ready after"):
        processes.wait_until("Redis", lambda: False, 0.1)
