"""Desired state of one topic or stream, as the plan writes it and the brokers create it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class BoxSpec:
    """A topic or stream that should exist.

    `adopt`: it must exist already and is never created, configured or deleted. `must_be_new`: it must not exist yet;
    if others have created it, it is not configured.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    retention_ms: int | None = None  # None: leave it as it is; -1: keep letters without a time limit
    config: Mapping[str, str] = field(default_factory=dict)
    adopt: bool = False
    is_retry_box: bool = False  # on Redis a retry box is a sorted set, on Kafka a topic
    must_be_new: bool = False
