"""Fixtures that hand out the real parts: each is started once per run, at its first use, and shared by all workers.

kafka       bootstrap address, "host:port"
redis       URL, "redis://host:port/0"
"""

import os
from pathlib import Path

import pytest

from tests.bed import beds

BED = "DLQ_BED"


def pytest_configure(config: pytest.Config) -> None:
    """The controller makes the run's bed, unless `make test` made one; its workers find it by the environment."""
    if BED not in os.environ:
        beds.sweep()
        config.stash[_OWN] = bed = beds.create()
        os.environ[BED] = str(bed.directory)


_OWN = pytest.StashKey[beds.Bed]()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The controller takes down what it made."""
    bed = config.stash.get(_OWN, None)
    if bed is not None:
        del os.environ[BED]
        bed.down()


@pytest.fixture(scope="session")
def bed() -> beds.Bed:
    """The bed of this run."""
    return beds.Bed(Path(os.environ[BED]))


@pytest.fixture(scope="session")
def kafka(bed: beds.Bed) -> str:
    """The bootstrap address of a real Kafka."""
    return bed.kafka()


@pytest.fixture(scope="session")
def redis(bed: beds.Bed) -> str:
    """The URL of a real Redis."""
    return bed.redis()
