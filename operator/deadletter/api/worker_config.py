"""Configuration of the workers: `assignment.json` in a ConfigMap, and `live.json`, which is reloaded at runtime.

The operator writes these models and the workers read them. Secrets are mounted as files under `/secrets/<name>/<key>`.
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.delivery import Delivery, HttpDelivery
from deadletter.api.queue_spec import Redaction
from deadletter.api.replay_spec import Rate
from deadletter.api.replays import ReplaySpec
from deadletter.api.retry_policies import RetryPolicySpec


class Boxes(BaseModel):
    """Names of the boxes of one queue; None if it has no such box."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str | None = None
    dead: str
    retry: str | None = None
    ledger: str


class WorkerConfig(BaseModel):
    """Base of the configuration files; unknown fields of a newer operator are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    not_rolling: ClassVar[frozenset[str]] = (
        frozenset()
    )  # fields whose change does not roll the pods, because they matter only at start


class ResolvedRoute(WorkerConfig):
    """A route with the dead box of its queue."""

    match: str
    box: str


class CourierAssignment(WorkerConfig):
    """Assignment of a courier: the source to deliver and how."""

    not_rolling = frozenset({"group_started"})

    namespace: str
    queue: str
    broker: BrokerConnectionSpec
    boxes: Boxes
    group: str
    start_from: Literal["Latest", "Earliest"] = "Latest"
    group_started: bool = False  # the group had offsets before; if they are missing, the courier stops
    policy: RetryPolicySpec = RetryPolicySpec()
    delivery: Delivery
    url: str
    routes: tuple[ResolvedRoute, ...] = ()
    compat_headers: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


class ReplayTarget(WorkerConfig):
    """Target that a Replay publishes to."""

    kind: Literal["Retry", "Origin", "Box", "Service", "Queue"]
    box: str | None = None
    url: str | None = None
    broker: BrokerConnectionSpec | None = None
    watched: tuple[str, ...] = ()  # dead boxes of the target, where letters fail again; empty: the queue's own


class ReplayAssignment(WorkerConfig):
    """Assignment of a Replay pod: which letters to process and how."""

    namespace: str
    name: str
    uid: str
    queue: str
    broker: BrokerConnectionSpec
    boxes: Boxes
    dialect: str = "Auto"
    read_values: bool = False
    origin: str | None = None
    spec: ReplaySpec
    target: ReplayTarget
    preview_uid: str | None = None
    observe: bool = False
    http: HttpDelivery | None = None
    allow: tuple[str, ...] = ()


class RedriveAssignment(WorkerConfig):
    """Assignment of a redriver, which continuously sends letters back by the policy."""

    namespace: str
    queue: str
    broker: BrokerConnectionSpec
    boxes: Boxes
    dialect: str = "Auto"
    read_values: bool = False
    origin: str | None = None
    policy: RetryPolicySpec = RetryPolicySpec()
    where: str | None = None
    allow: tuple[str, ...] = ()


class LiveConfig(WorkerConfig):
    """Settings that workers reload at runtime: pause reason, rate limits, and what `letters` redacts."""

    paused: str = ""
    rate: Rate | None = None
    redaction: Redaction | None = None
