"""Faults of a three-broker Kafka under couriers and a Replay: nothing is lost or duplicated.

`make bench-faults` also runs the long forms and writes their results into `bench/results`.
"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.bed.kafka_cluster import KafkaCluster
from tests.workers import cluster_faults
from tests.workers.cluster_work import FULL, SHORT, Account, Size


def test_the_account_finds_lost_and_duplicate_letters() -> None:
    good, bad = set(range(200)) - {3, 103}, Counter((3, 103))
    assert Account.of("none", 200, good, bad, Counter(range(200)), 1.0).wrong == 0
    wrong = Account.of("some", 200, good - {7}, bad + Counter((3, 8)), Counter([*range(1, 200), 5, 5]), 1.0)
    assert (wrong.lost, wrong.duplicate_letters) == (1, 2)
    assert (wrong.lost_replays, wrong.duplicate_replays) == (1, 2)
    assert wrong.wrong == 6


async def survive(name: str, cluster: KafkaCluster, folder: Path, size: Size) -> None:
    account = await cluster_faults.run(name, cluster, folder, size)
    print(json.dumps(asdict(account)))
    assert account.wrong == 0, account
    assert account.delivered + account.letters == account.messages == account.replayed


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", cluster_faults.FAULTS)
async def test_a_fault_loses_and_repeats_nothing(name: str, kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    await survive(name, kafka_cluster, tmp_path, SHORT)


@pytest.mark.kill
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", cluster_faults.FAULTS)
async def test_a_fault_during_long_work_loses_and_repeats_nothing(
    name: str, kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    await survive(name, kafka_cluster, tmp_path, FULL)
