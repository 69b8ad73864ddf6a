"""The entry point of the role `courier`: read the assignment, open the broker, work until stopped."""

import asyncio
import time
from collections.abc import Callable, Sequence

from deadletter import logs
from deadletter.api.worker_config import CourierAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError, Fenced
from deadletter.brokers.types import SubscriptionSpec
from deadletter.core.names import retry_box_name
from deadletter.net.secrets import Secrets, mounted_secrets
from deadletter.wall_clock import now_ms
from deadletter.workers import health, process
from deadletter.workers.backoff import ExponentialDelay, wait_for_event
from deadletter.workers.courier.broker_access import BrokerAccess
from deadletter.workers.courier.courier import MAX_CLAIM_FAILURE_S, Courier
from deadletter.workers.courier.status import DeletedMessages, StatusReporter
from deadletter.workers.delivery.base import MessageDelivery
from deadletter.workers.delivery.http.resolver import Resolver, resolve_host
from deadletter.workers.delivery.open import open_delivery
from deadletter.workers.environment import MAX_MESSAGE_CHARACTERS, AssignmentError, WorkerEnvironment
from deadletter.workers.live_config import LiveConfigFile

INITIAL_DELAY_S = 1.0
MAX_DELAY_S = 30.0
STEADY_AFTER_S = 2 * MAX_CLAIM_FAILURE_S  # a subscription that can claim nothing ends after half of it
EXIT_FAILED, EXIT_INVALID_ASSIGNMENT = 1, 2


def subscription_spec(assignment: CourierAssignment, pod: str, was_open: bool = False) -> SubscriptionSpec:
    """Return what this pod subscribes to. `was_open`: this process had a subscription, so the group has offsets."""
    boxes = assignment.boxes
    return SubscriptionSpec(
        source=boxes.source or "",
        group=assignment.group,
        dead=boxes.dead,
        retry=boxes.retry or retry_box_name(boxes.dead),
        ledger=boxes.ledger,
        consumer=pod,
        from_earliest=assignment.start_from == "Earliest",
        has_started=assignment.group_started or was_open,
    )


def delivery_for(assignment: CourierAssignment, secrets: Secrets, resolver: Resolver = resolve_host) -> MessageDelivery:
    """Return the delivery to the service of an assignment."""
    timeout_s = assignment.policy.to_policy().timeout / 1000
    return open_delivery(
        assignment.delivery.http, assignment.url, timeout_s, secrets, assignment.allow, resolver=resolver
    )


class ReconnectBackoff:
    """The delay before the next subscription: it doubles, and starts again after a subscription that was steady."""

    def __init__(self) -> None:
        self._delay = ExponentialDelay(INITIAL_DELAY_S, MAX_DELAY_S)

    def delay_after(self, worked_s: float) -> float:
        """Return the seconds to wait after a subscription that worked for `worked_s`."""
        if worked_s >= STEADY_AFTER_S:
            self._delay.reset()
        return self._delay.next()


class CourierProcess:
    """Runs a courier in this pod, with a new subscription after every transient error of the broker."""

    def __init__(
        self, assignment: CourierAssignment, environment: WorkerEnvironment, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._assignment, self._environment, self._clock = assignment, environment, clock
        self._access = BrokerAccess(clock())
        self._deleted = DeletedMessages()
        self._subscribed_at: float | None = None
        self._was_open = False
        self._live = LiveConfigFile(environment.assignment_dir)
        self._secrets = mounted_secrets(environment.secrets_dir)
        self._reporter: StatusReporter | None = None
        self._broker_problem = "the broker has not answered yet"
        self._log = logs.get(__name__)
        self.health = health.ProbeHandlers(self._stuck_reason, lambda: self._broker_problem)

    def _stuck_reason(self) -> str:
        now, reporter = self._clock(), self._reporter
        is_idle_on_purpose = bool(self._paused_by_operator()) or (reporter is not None and reporter.is_idle_on_purpose)
        problem = self._access.stuck_reason(now, is_idle_on_purpose)
        return problem or (reporter.stuck_reason(now) if reporter else "")

    def _paused_by_operator(self) -> str:
        return self._live.current.paused

    async def run(self, stop: asyncio.Event) -> int:
        """Work until `stop` or an error that is not transient; return the exit code."""
        async with health.serve_probes(self.health, self._environment.health_port), self._live.refreshing():
            return await self._work_until_stopped(stop)

    async def _work_until_stopped(self, stop: asyncio.Event) -> int:
        backoff = ReconnectBackoff()
        while not stop.is_set():
            self._subscribed_at = None
            try:
                async with open_broker(self._assignment.broker, self._secrets, self._assignment.allow) as broker:
                    await self._work(broker, stop)
            except BrokerError as error:
                self._report_broker_error(error)
                if not (error.is_transient or isinstance(error, Fenced)):
                    return EXIT_FAILED
                await wait_for_event(stop, backoff.delay_after(self._worked_s()))
            except Exception as error:  # noqa: BLE001 - the next process claims the held messages again
                self._report_unexpected_error(logs.origin_of(error))
                return EXIT_FAILED
        return 0

    def _worked_s(self) -> float:
        return 0.0 if self._subscribed_at is None else self._clock() - self._subscribed_at

    def _report_unexpected_error(self, origin: str) -> None:
        self._log.error("courier ends after an unexpected error", error=origin)
        message = f"The courier failed: {origin}. The messages it held are delivered again. Report it as a bug."
        self._environment.write_termination_message("CourierError", message)

    def _report_broker_error(self, error: BrokerError) -> None:
        reason, message = type(error).__name__, str(error)
        self._broker_problem = f"{reason}: {message}"[:MAX_MESSAGE_CHARACTERS]
        self._access.add_failure(error)
        self._log.error("broker request failed", reason=reason, message=message[:MAX_MESSAGE_CHARACTERS])
        self._environment.write_termination_message(reason, message)

    async def _work(self, broker: Broker, stop: asyncio.Event) -> None:
        assignment, pod = self._assignment, self._environment.pod
        delivery = delivery_for(assignment, self._secrets)
        async with broker.subscribe(subscription_spec(assignment, pod, self._was_open)) as subscription:
            self._was_open = True
            courier = Courier(assignment, subscription, delivery, self._paused_by_operator, access=self._access)
            labels = (assignment.namespace, assignment.queue)
            timeout_s = assignment.policy.to_policy().timeout / 1000
            self._reporter = StatusReporter(courier, subscription, pod, labels, now_ms, timeout_s, self._deleted)
            reporting = asyncio.ensure_future(self._reporter.run())
            self._broker_problem = ""
            self._subscribed_at = self._clock()
            try:
                await courier.run(stop)
            finally:
                self._reporter = None
                await process.cancel_and_wait(reporting)
                await delivery.close()


def main(argv: Sequence[str]) -> int:
    """Run the courier as the only process of its pod; it takes no arguments."""
    del argv
    logs.configure(role="courier")
    environment = WorkerEnvironment.from_environment()
    try:
        assignment = environment.read_assignment(CourierAssignment)
    except AssignmentError as error:
        logs.get(__name__).error("assignment cannot be read", message=str(error))
        environment.write_termination_message("InvalidSpec", str(error))
        return EXIT_INVALID_ASSIGNMENT
    logs.configure(role="courier", namespace=assignment.namespace, queue=assignment.queue)
    return process.run(CourierProcess(assignment, environment).run)
