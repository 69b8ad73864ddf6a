"""The role `courier`: reads its assignment, opens the broker, works until it is told to stop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from deadletter import logs
from deadletter.api.assignments import CourierAssignment
from deadletter.brokers.connect import mounted_secrets, open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.types import SubscriptionSpec
from deadletter.clock import now_ms
from deadletter.core.names import retry_box_name
from deadletter.workers import health, process
from deadletter.workers.courier.courier import MAX_CLAIM_FAILURE_S, Courier
from deadletter.workers.courier.status import StatusReporter
from deadletter.workers.delivery.http.delivery import HttpMessageDelivery
from deadletter.workers.environment import AssignmentError, WorkerEnvironment
from deadletter.workers.live_config import LiveConfigFile

INITIAL_DELAY_S = 1.0
MAX_DELAY_S = 30.0
STEADY_AFTER_S = 2 * MAX_CLAIM_FAILURE_S  # a desk where nothing can be claimed is borne for half of it


def subscription_spec(assignment: CourierAssignment, pod: str, has_opened: bool = False) -> SubscriptionSpec:
    """What this pod works on. `has_opened`: a desk of this process was open before, so the group has offsets."""
    boxes = assignment.boxes
    return SubscriptionSpec(
        source=boxes.source or "",
        group=assignment.group,
        dead=boxes.dead,
        retry=boxes.retry or retry_box_name(boxes.dead),
        ledger=boxes.ledger,
        consumer=pod,
        from_earliest=assignment.start_from == "Earliest",
        has_started=assignment.group_started or has_opened,
    )


class ReconnectBackoff:
    """How long to wait for the next desk: longer each time, and from the beginning after one that was steady."""

    def __init__(self) -> None:
        self._next = INITIAL_DELAY_S

    def after(self, worked: float) -> float:
        """Seconds to wait after a desk where we worked for so many."""
        pause = INITIAL_DELAY_S if worked >= STEADY_AFTER_S else self._next
        self._next = min(pause * 2, MAX_DELAY_S)
        return pause


class CourierProcess:
    """One pod's work from start to end; its trouble is what readiness says."""

    def __init__(
        self, assignment: CourierAssignment, station: WorkerEnvironment, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._assignment, self._station, self._clock = assignment, station, clock
        self._sat_down: float | None = None
        self._has_opened = False
        self._live = LiveConfigFile(station.assignments)
        self._secrets = mounted_secrets(station.secrets)
        self._speaker: StatusReporter | None = None
        self._trouble = "the broker has not answered yet"
        self._log = logs.get(__name__)
        self.health = health.ProbeHandlers(self._not_live, lambda: self._trouble)

    def _not_live(self) -> str:
        return self._speaker.stuck(self._clock()) if self._speaker else ""

    async def work(self, stop: asyncio.Event) -> int:
        """Until `stop`, or until trouble that time does not heal."""
        async with health.serve_probes(self.health, self._station.health_port):
            following = asyncio.ensure_future(self._live.follow())
            try:
                return await self._keep_at_it(stop)
            finally:
                await process.cancel_and_wait(following)

    async def _keep_at_it(self, stop: asyncio.Event) -> int:
        pauses = ReconnectBackoff()
        while not stop.is_set():
            self._sat_down = None
            try:
                async with open_broker(self._assignment.broker, self._secrets, self._assignment.allow) as broker:
                    await self._at_desk(broker, stop)
            except BrokerError as error:
                self._note(error)
                if not (error.is_transient or isinstance(error, Fenced)):
                    return 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pauses.after(self._worked()))
            except Exception as error:  # noqa: BLE001  (what is in hand comes back to the next process, and the word says why)
                self._end(logs.origin_of(error))
                return 1
        return 0

    def _worked(self) -> float:
        return 0.0 if self._sat_down is None else self._clock() - self._sat_down

    def _end(self, origin: str) -> None:
        self._log.error("the courier broke and ends", error=origin)
        self._station.terminate("CourierError", f"the courier broke: {origin}; what it held is delivered again")

    def _note(self, error: BrokerError) -> None:
        self._trouble = f"{type(error).__name__}: {error}"[:1024]
        self._log.error("the broker objects", reason=type(error).__name__, message=str(error)[:1024])
        self._station.terminate(type(error).__name__, str(error))

    async def _at_desk(self, broker: Broker, stop: asyncio.Event) -> None:
        assignment, pod = self._assignment, self._station.pod
        deliverer = HttpMessageDelivery(assignment, self._secrets)
        async with broker.subscribe(subscription_spec(assignment, pod, self._has_opened)) as desk:
            self._has_opened = True
            courier = Courier(assignment, desk, deliverer, lambda: self._live.current.paused)
            where = (assignment.namespace, assignment.queue)
            timeout_s = assignment.policy.policy().timeout / 1000
            self._speaker = StatusReporter(courier, desk, pod, where, now_ms, timeout_s)
            speaking = asyncio.ensure_future(self._speaker.speak())
            self._trouble = ""
            self._sat_down = self._clock()
            try:
                await courier.run(stop)
            finally:
                self._speaker = None
                await process.cancel_and_wait(speaking)
                await deliverer.close()


def main(argv: Sequence[str]) -> int:
    """Run as the pod's only process; takes no arguments."""
    del argv
    logs.configure(role="courier")
    station = WorkerEnvironment.from_environment()
    try:
        assignment = station.read(CourierAssignment)
    except AssignmentError as error:
        logs.get(__name__).error("no assignment", message=str(error))
        station.terminate("InvalidSpec", str(error))
        return 2
    logs.configure(role="courier", namespace=assignment.namespace, queue=assignment.queue)
    return process.run(CourierProcess(assignment, station).work)
