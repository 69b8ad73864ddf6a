"""A Replay in the cluster whose pods are killed from the node's side: 0 lost, 0 twice, order and tally exact."""

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
from tests.e2e.hauls import PARTITIONS, Haul

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]


@contextmanager
def haul_of(cluster: Cluster, address: str, share: int) -> Iterator[Haul]:
    """A queue of so many letters a partition, in a namespace of its own."""
    story.install(cluster)
    stage = Stage(cluster, f"haul-{uuid.uuid4().hex[:6]}")
    story.namespaces(cluster, stage.namespace)
    haul = Haul(stage, address)
    try:
        asyncio.run(haul.fill(share))
        haul.watch()
        yield haul
    except Exception:
        print(stage.show("get", "deadletters,jobs,pods", "-o", "wide"))
        print(cluster.kubectl("-n", story.SYSTEM, "logs", "deploy/dlq-dlq-operator", "--tail=40"))
        raise
    finally:
        cluster.kubectl("delete", "namespace", stage.namespace, "--wait=false")


def check_all_once(haul: Haul, share: int) -> None:
    """Every letter arrived once, in its own partition and in order; ledger and status say so."""
    assert haul.ending(patience=900) == ("True", "AllReplayed")
    assert asyncio.run(haul.arrived()) == dict.fromkeys(range(PARTITIONS), list(range(share)))
    assert asyncio.run(haul.open_letters()) == 0
    status = haul.stage.get("rply/haul")["status"]
    counted = {name: status[name] for name in ("matched", "replayed", "skipped", "remaining")}
    assert counted == {"matched": 4 * share, "replayed": 4 * share, "skipped": 0, "remaining": 0}
    haul.stage.until("depth 0", lambda: haul.stage.get(f"dlq/{haul.name}")["status"].get("depth") == 0)


def delete_job(haul: Haul) -> None:
    haul.stage.kubectl("delete", "job", haul.job(), "--cascade=foreground", "--wait=true", "--timeout=120s")


def suspend(haul: Haul) -> None:
    """Stop and go on."""
    haul.replay(rate={"perSecond": 150}, suspend=True)
    haul.stage.until("no pod", lambda: not haul.stage.get(f"job/{haul.job()}")["status"].get("active"))
    haul.replay(rate={"perSecond": 150})
    haul.container()


def delete_pod(haul: Haul) -> None:
    """Ask its pod to stop, and wait for the next."""
    asked = haul.container()
    haul.stage.kubectl("delete", "pod", "-l", f"job-name={haul.job()}", "--wait=true", "--timeout=120s")
    haul.container(other_than=asked)


def test_pods_killed_and_a_job_deleted_lose_and_repeat_nothing(cluster: Cluster, bed: Bed) -> None:
    with haul_of(cluster, bed.kafka(), 1_500) as haul:
        haul.replay(rate={"perSecond": 75})  # far from its end, however long a fault takes
        haul.until_sent(300)
        first = haul.container()
        haul.kill(first)
        haul.container(other_than=first)
        haul.until_sent(900)
        haul.stage.until("a kill not to count once another pod got on", lambda: haul.patience() > MAX_FAILED_PODS)
        suspend(haul)
        delete_pod(haul)
        assert haul.stage.get(f"job/{haul.job()}")["status"]["failed"] == 1  # asked to stop: no failure
        delete_job(haul)
        third = haul.container()
        haul.until_sent(1_500)
        haul.kill(third)
        haul.replay(rate={"perSecond": 100_000})
        check_all_once(haul, 1_500)


@pytest.mark.kill
def test_every_fault_at_every_tenth_loses_and_repeats_nothing(cluster: Cluster, bed: Bed) -> None:
    """A kill at every 10 %; between them the Job deleted, the operator restarted, Kafka killed and started again."""
    part = beds.Part("bounced-haul-kafka", 2, kafka_part.start)
    said = bed.part(part)
    address, ports = said["address"], said["ports"]
    share = 10_000

    def bounce() -> None:
        processes.kill(processes.of_bed(bed.directory, part.name))
        kafka_part.start(bed.directory, part.name, address, *ports)

    def restart_operator() -> None:
        cluster.kubectl("-n", story.SYSTEM, "rollout", "restart", "deploy/dlq-dlq-operator")
        cluster.kubectl("-n", story.SYSTEM, "rollout", "status", "deploy/dlq-dlq-operator", "--timeout=180s")

    with haul_of(cluster, f"{address}:{ports[0]}", share) as haul:
        faults = {25: lambda: delete_job(haul), 35: restart_operator, 45: lambda: delete_job(haul), 55: bounce}
        faults |= {65: lambda: delete_job(haul), 85: lambda: delete_job(haul)}
        haul.replay(rate={"perSecond": 500})
        killed = ""
        for percent in range(10, 100, 5):
            haul.until_sent(PARTITIONS * share * percent // 100)
            if percent % 10 == 0:
                killed = haul.container(other_than=killed)
                haul.kill(killed)
            elif percent in faults:
                faults[percent]()
        check_all_once(haul, share)
    processes.stop(processes.of_bed(bed.directory, part.name))
