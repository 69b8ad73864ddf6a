"""The way by kind, as far as it goes without an engine: kind itself is the real one, `docker` and clusters are not.

That a cluster comes up and pods reach the brokers is seen only on a machine with Docker, by `make test PROVIDER=kind`.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.bed import beds, binaries, kind, network, node
from tests.bed.processes import BedError

# What Docker says of the network that kind made; each call is written down.
DOCKER = """#!/bin/sh
echo "$@" >> {calls}
[ "$1 $2" = "network inspect" ] || exit 0
echo '[{{"Name": "kind", "IPAM": {{"Config": [{{"Subnet": "fc00:f853::/64", "Gateway": "fc00:f853::1"}},'
echo '{{"Subnet": "172.18.0.0/16", "Gateway": "172.18.0.1"}}]}}}}]'
"""
KUBECONFIG = {"clusters": [{"name": "kind", "cluster": {"server": "https://127.0.0.1:40123"}}]}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for Docker was asked."""
    program, calls = tmp_path / "docker", tmp_path / "calls"
    program.write_text(DOCKER.format(calls=calls))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return calls


@pytest.fixture
def bed(tmp_path: Path) -> Path:
    """The directory of a bed whose cluster kind has made."""
    bed = tmp_path / "abc"
    (bed / "kind").mkdir(parents=True)
    (bed / "kind" / "kubeconfig").write_text(yaml.safe_dump(KUBECONFIG))
    (bed / "bed.json").write_text('{"address": "172.18.0.1"}')
    return bed


def objection(config: Path) -> str:
    """What kind says of a configuration on a machine without any engine."""
    command = [binaries.path("kind"), "create", "cluster", "--name", "never", "--config", config]
    alone = {"PATH": "/nowhere", "HOME": str(config.parent)}
    return subprocess.run(command, env=alone, capture_output=True, text=True, check=False, timeout=120).stderr


def test_kind_takes_our_configuration(tmp_path: Path) -> None:
    ours, wrong = tmp_path / "ours.yaml", tmp_path / "wrong.yaml"
    ours.write_text(kind.CONFIG.read_text())
    wrong.write_text(ours.read_text().replace("nodes:", "node:"))
    assert "unable to decode config" in objection(wrong)
    said = objection(ours)
    assert "config" not in said
    assert "docker" in said


def test_the_brokers_listen_where_pods_of_kind_see_the_machine(calls: Path) -> None:
    assert kind.gateway() == "172.18.0.1"
    assert calls.read_text() == "network inspect kind\n"


def test_the_cluster_of_the_tests_is_the_one_that_kind_made(bed: Path) -> None:
    cluster = beds.Bed(bed).cluster()
    assert (cluster.server, cluster.address) == ("https://127.0.0.1:40123", "172.18.0.1")
    assert cluster.kubeconfig == bed / "kind" / "kubeconfig"


def test_containers_are_killed_on_the_node_of_kind(bed: Path, calls: Path) -> None:
    node.ctr(bed, "tasks", "kill", "--signal", "SIGKILL", "c0ffee")
    told = f"exec {network.name(bed)}-control-plane ctr -n k8s.io tasks kill --signal SIGKILL c0ffee\n"
    assert calls.read_text() == told


def test_a_cluster_that_kind_cannot_make_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "kind"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(binaries, "path", lambda _: program)
    with pytest.raises(BedError, match="kind could not create a cluster"):
        kind.create("never", tmp_path / "image.tar")
