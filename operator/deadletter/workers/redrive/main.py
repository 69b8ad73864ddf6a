"""The redriver, `python -m deadletter redrive`: sends letters of one adopted queue back until it is stopped."""

import asyncio

from deadletter import logs
from deadletter.api.worker_config import RedriveAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerError
from deadletter.core.cel import PredicateError
from deadletter.net.secrets import mounted_secrets
from deadletter.wall_clock import now_ms
from deadletter.workers import process
from deadletter.workers.environment import AssignmentError, WorkerEnvironment
from deadletter.workers.exit_status import NEEDS_INTERVENTION, ExitStatus, status_of_broker_error
from deadletter.workers.health import ProbeHandlers, serve_probes
from deadletter.workers.live_config import LiveConfigFile
from deadletter.workers.redrive.redriver import Redriver


async def _connect_and_run(
    assignment: RedriveAssignment, environment: WorkerEnvironment, stop: asyncio.Event
) -> ExitStatus:
    live = LiveConfigFile(environment.assignment_dir)
    secrets = mounted_secrets(environment.secrets_dir)
    try:
        async with open_broker(assignment.broker, secrets, assignment.allow) as broker, live.refreshing():
            redriver = Redriver(assignment, broker, stop, now_ms, lambda: live.current.paused, environment.pod)
            return await redriver.run()
    except PredicateError as error:
        return ExitStatus(NEEDS_INTERVENTION, "InvalidSpec", f"redrive.where or a rule of the policy: {error}")
    except BrokerError as error:
        return status_of_broker_error(error)


async def run_worker(stop: asyncio.Event) -> int:
    """Read the assignment, run the redriver, write the termination message; the exit code is 0 after a stop."""
    environment = WorkerEnvironment.from_environment()
    try:
        assignment = environment.read_assignment(RedriveAssignment)
    except AssignmentError as error:
        environment.write_termination_message("InvalidSpec", str(error))
        return NEEDS_INTERVENTION
    async with serve_probes(ProbeHandlers(), environment.health_port):
        status = await _connect_and_run(assignment, environment, stop)
    environment.write_termination_message(str(status.reason), status.message)
    return 0 if stop.is_set() else status.code


def main(argv: list[str]) -> int:
    """Run the redriver; it takes no arguments."""
    del argv
    logs.configure(role="redrive")
    return process.run(run_worker)
