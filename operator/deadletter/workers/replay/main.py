"""`python -m deadletter replay`: one Replay, from its assignment to its exit code (endings.py)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from deadletter import logs
from deadletter.api.assignments import ReplayAssignment
from deadletter.api.delivery import HttpDelivery
from deadletter.brokers.connect import Secrets, mounted_secrets, open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.workers import metrics, process
from deadletter.workers.environment import AssignmentError, WorkerEnvironment
from deadletter.workers.exit_status import COUNT_FIELDS, NEEDS_INTERVENTION, ExitStatus, status_of_broker_error
from deadletter.workers.health import ProbeHandlers, serve_probes
from deadletter.workers.live_config import LiveConfigFile
from deadletter.workers.replay.services import open_service
from deadletter.workers.replay.setup import run_replay
from deadletter.workers.replay.sinks import BrokerCarrier, Carrier


@asynccontextmanager
async def follow_live_config(live: LiveConfigFile) -> AsyncIterator[None]:
    """Keep the live file fresh while the block runs."""
    task = asyncio.create_task(live.follow())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _carrier(assignment: ReplayAssignment, secrets: Secrets, stack: AsyncExitStack) -> Carrier | None:
    target = assignment.target
    if target.kind == "Service" and target.url:
        http = assignment.http or HttpDelivery(url=target.url)
        return await stack.enter_async_context(open_service(target.url, http, secrets, assignment.allow))
    if target.broker is not None:
        other: Broker = await stack.enter_async_context(open_broker(target.broker, secrets, assignment.allow))
        return BrokerCarrier(other, assignment.uid)
    return None


async def _replay(assignment: ReplayAssignment, station: WorkerEnvironment, stop: asyncio.Event) -> ExitStatus:
    secrets = mounted_secrets(Path(station.secrets))
    live = LiveConfigFile(station.assignments)
    async with AsyncExitStack() as stack:
        try:
            broker = await stack.enter_async_context(open_broker(assignment.broker, secrets, assignment.allow))
            carrier = await _carrier(assignment, secrets, stack)
        except BrokerError as error:
            return status_of_broker_error(error)
        await stack.enter_async_context(follow_live_config(live))
        return await run_replay(assignment, broker, stop, carrier, lambda: live.current.rate)


async def work(stop: asyncio.Event) -> int:
    """The whole life of the pod."""
    station = WorkerEnvironment.from_environment()
    log = logs.get(__name__)
    try:
        assignment = station.read(ReplayAssignment)
    except AssignmentError as error:
        station.terminate("InvalidSpec", str(error))
        return NEEDS_INTERVENTION
    async with serve_probes(ProbeHandlers(registry=metrics.REPLAY_REGISTRY), station.health_port):
        ending = await _replay(assignment, station, stop)
    done = {name: count for name, count in ending.counts.items() if name in COUNT_FIELDS}
    log.info("the replay ends", replay=assignment.name, reason=str(ending.reason), code=ending.code, **done)
    station.terminate(str(ending.reason), ending.message, **ending.counts)
    return ending.code


def main(argv: list[str]) -> int:
    """Run the replayer; it takes no arguments."""
    del argv
    logs.configure(role="replay")
    process.tune_malloc()
    return process.run(work)
