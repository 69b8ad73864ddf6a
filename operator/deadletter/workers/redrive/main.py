"""`python -m deadletter redrive`: the standing replayer of one adopted queue."""

import asyncio

from deadletter import logs
from deadletter.api.assignments import RedriveAssignment
from deadletter.brokers.connect import open_broker
from deadletter.net.secrets import mounted_secrets
from deadletter.brokers.errors import BrokerError
from deadletter.clock import now_ms
from deadletter.core.cel import PredicateError
from deadletter.workers import process
from deadletter.workers.environment import AssignmentError, WorkerEnvironment
from deadletter.workers.exit_status import NEEDS_INTERVENTION, ExitStatus, status_of_broker_error
from deadletter.workers.health import ProbeHandlers, serve_probes
from deadletter.workers.live_config import LiveConfigFile
from deadletter.workers.redrive.redriver import Redriver
from deadletter.workers.replay.main import follow_live_config


async def _redrive(assignment: RedriveAssignment, station: WorkerEnvironment, stop: asyncio.Event) -> ExitStatus:
    live = LiveConfigFile(station.assignments)
    secrets = mounted_secrets(station.secrets)
    try:
        async with open_broker(assignment.broker, secrets, assignment.allow) as broker, follow_live_config(live):
            redriver = Redriver(assignment, broker, stop, now_ms, lambda: live.current.paused, station.pod)
            return await redriver.run()
    except PredicateError as error:
        return ExitStatus(NEEDS_INTERVENTION, "InvalidSpec", f"redrive.where or a rule of the policy: {error}")
    except BrokerError as error:
        return status_of_broker_error(error)


async def work(stop: asyncio.Event) -> int:
    """The whole life of the pod; asked to stop it ends well."""
    station = WorkerEnvironment.from_environment()
    try:
        assignment = station.read(RedriveAssignment)
    except AssignmentError as error:
        station.terminate("InvalidSpec", str(error))
        return NEEDS_INTERVENTION
    async with serve_probes(ProbeHandlers(), station.health_port):
        ending = await _redrive(assignment, station, stop)
    station.terminate(str(ending.reason), ending.message)
    return 0 if stop.is_set() else ending.code


def main(argv: list[str]) -> int:
    """Run the redriver; it takes no arguments."""
    del argv
    logs.configure(role="redrive")
    return process.run(work)
