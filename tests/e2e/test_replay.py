"""A Replay in the cluster whose pods are killed: nothing is lost or repeated, order and counts are exact."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deadletter.plan.replay_manifests import MAX_FAILED_PODS
from tests.bed import beds, processes
from tests.bed import kafka as kafka_part
from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.demo import story
from tests.demo.stage import Stage
from tests.e2e.cluster_replay import PARTITIONS, ClusterReplay

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]


@contextmanager
def loaded_queue(cluster: Cluster, address: str, share: int) -> Iterator[ClusterReplay]:
    """Create a queue with `share` letters in each partition, in a new namespace."""
    story.install(cluster)
    stage = Stage(cluster, f"load-{uuid.uuid4().hex[:6]}")
    story.create_namespaces(cluster, stage.namespace)
    load = ClusterReplay(stage, address)
    try:
        asyncio.run(load.fill(share))
        load.create_queue()
        yield load
    except Exception:
        print(stage.show("get", "deadletters,jobs,pods", "-o", "wide"))
        print(cluster.kubectl("-n", story.SYSTEM, "logs", "deploy/dlq-dlq-operator", "--tail=40"))
        raise
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")


def assert_all_replayed_once(load: ClusterReplay, share: int) -> None:
    """Assert that every letter arrived once, in its partition and in order, and that ledger and status agree."""
    assert load.result(timeout_s=900) == ("True", "AllReplayed")
    assert asyncio.run(load.arrived_numbers()) == dict.fromkeys(range(PARTITIONS), list(range(share)))
    assert asyncio.run(load.open_letters()) == 0
    status = load.stage.get("rply/load")["status"]
    counted = {name: status[name] for name in ("matched", "replayed", "skipped", "remaining")}
    assert counted == {"matched": 4 * share, "replayed": 4 * share, "skipped": 0, "remaining": 0}
    load.stage.until("depth 0", lambda: load.stage.get(f"dlq/{load.name}")["status"].get("depth") == 0)


def delete_job(load: ClusterReplay) -> None:
    load.stage.kubectl("delete", "job", load.job(), "--cascade=foreground", "--wait=true", "--timeout=120s")


def suspend(load: ClusterReplay) -> None:
    """Suspend the Replay and resume it."""
    load.replay(rate={"perSecond": 150}, suspend=True)
    load.stage.until("no pod", lambda: not load.stage.get(f"job/{load.job()}")["status"].get("active"))
    load.replay(rate={"perSecond": 150})
    load.container()


def delete_pod(load: ClusterReplay) -> None:
    """Delete its pod and wait for the next one."""
    deleted = load.container()
    load.stage.kubectl("delete", "pod", "-l", f"job-name={load.job()}", "--wait=true", "--timeout=120s")
    load.container(other_than=deleted)


def test_pods_killed_and_a_job_deleted_lose_and_repeat_nothing(cluster: Cluster, bed: Bed) -> None:
    with loaded_queue(cluster, bed.kafka(), 1_500) as load:
        load.replay(rate={"perSecond": 75})  # slow, so that the Replay outlasts all faults
        load.until_sent(300)
        first = load.container()
        load.kill(first)
        load.container(other_than=first)
        load.until_sent(900)
        load.stage.until(
            "the backoff limit to allow for the killed pod", lambda: load.backoff_limit() > MAX_FAILED_PODS
        )
        suspend(load)
        delete_pod(load)
        assert load.stage.get(f"job/{load.job()}")["status"]["failed"] == 1  # a stopped pod does not count as failed
        delete_job(load)
        third = load.container()
        load.until_sent(1_500)
        load.kill(third)
        load.replay(rate={"perSecond": 100_000})
        assert_all_replayed_once(load, 1_500)


@pytest.mark.kill
def test_every_fault_at_every_tenth_loses_and_repeats_nothing(cluster: Cluster, bed: Bed) -> None:
    """A kill at every 10 %; between them the Job is deleted, the operator restarted, Kafka killed and restarted."""
    part = beds.Part("restarted-load-kafka", 2, kafka_part.start)
    started = bed.ensure_part(part)
    address, ports = started["address"], started["ports"]
    share = 10_000

    def restart_kafka() -> None:
        processes.kill(processes.find_of_bed(bed.directory, part.name))
        kafka_part.start(bed.directory, part.name, address, *ports)

    def restart_operator() -> None:
        cluster.kubectl("-n", story.SYSTEM, "rollout", "restart", "deploy/dlq-dlq-operator")
        cluster.kubectl("-n", story.SYSTEM, "rollout", "status", "deploy/dlq-dlq-operator", "--timeout=180s")

    with loaded_queue(cluster, f"{address}:{ports[0]}", share) as load:
        faults = {25: lambda: delete_job(load), 35: restart_operator, 45: lambda: delete_job(load), 55: restart_kafka}
        faults |= {65: lambda: delete_job(load), 85: lambda: delete_job(load)}
        load.replay(rate={"perSecond": 500})
        killed = ""
        for percent in range(10, 100, 5):
            load.until_sent(PARTITIONS * share * percent // 100)
            if percent % 10 == 0:
                killed = load.container(other_than=killed)
                load.kill(killed)
            elif percent in faults:
                faults[percent]()
        assert_all_replayed_once(load, share)
    processes.stop(processes.find_of_bed(bed.directory, part.name))
