"""What a worker is told: `assignment.json` of a ConfigMap, and `live.json` that changes while it runs.

The operator writes these models, the workers read them; Secrets are mounted as files under `/secrets/<name>/<key>`.
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.delivery import Delivery, HttpDelivery
from deadletter.api.queue_spec import Redaction
from deadletter.api.replays import Rate, ReplaySpec
from deadletter.api.retry_policies import RetryPolicySpec


class Boxes(BaseModel):
    """What a queue reads and writes; None: it has no such box."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str | None = None
    dead: str
    retry: str | None = None
    ledger: str


class WorkerConfig(BaseModel):
    """Snake case: no user ever writes it. A newer operator may say more than an older worker understands."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    not_rolling: ClassVar[frozenset[str]] = frozenset()  # fields that a pod reads only when it starts


class ResolvedRoute(WorkerConfig):
    """A route with the box its queue owns."""

    match: str
    box: str


class CourierAssignment(WorkerConfig):
    """Deliver this source."""

    not_rolling = frozenset({"group_started"})

    namespace: str
    queue: str
    broker: BrokerConnectionSpec
    boxes: Boxes
    group: str
    start_from: Literal["Latest", "Earliest"] = "Latest"
    group_started: bool = False  # the group had offsets before: without them the courier stops
    policy: RetryPolicySpec = RetryPolicySpec()
    delivery: Delivery
    url: str
    routes: tuple[ResolvedRoute, ...] = ()
    compat_headers: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


class ReplayTarget(WorkerConfig):
    """Where a Replay publishes."""

    kind: Literal["Retry", "Origin", "Box", "Service", "Queue"]
    box: str | None = None
    url: str | None = None
    broker: BrokerConnectionSpec | None = None
    watched: tuple[str, ...] = ()  # dead boxes where letters that fail there end; none: the queue's own


class ReplayAssignment(WorkerConfig):
    """Replay these letters."""

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
    """Send letters of this queue back by its policy, standing."""

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
    """What may change without a restart: why the gate is shut, if it is, the rate, and what `letters` hides."""

    paused: str = ""
    rate: Rate | None = None
    redaction: Redaction | None = None
