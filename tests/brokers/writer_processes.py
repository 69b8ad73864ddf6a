"""Start the writer program, wait for a certain step, and end it."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass

from deadletter.brokers.contract import Broker
from tests.bed.places import REPOSITORY
from tests.brokers.helpers import Boxes, numbered_messages, publish_all, read_all
from tests.brokers.writer_program import FENCED

TIMEOUT_S = 200.0
RECOVERY_TIMEOUT_S = 60.0  # after a restart of the broker
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{REPOSITORY / 'operator'}{os.pathsep}{REPOSITORY}"}


@dataclass
class WriterProcess:
    """One running writer. Its stderr is read all the time, because a full pipe would stop it."""

    child: asyncio.subprocess.Process
    errors: "asyncio.Task[bytes]"

    async def wait_for_commits(self, count: int) -> bool:
        """Wait for `ready` and this many commits; False if it ended before."""
        assert self.child.stdout is not None
        for _ in range(count + 1):
            if not await asyncio.wait_for(self.child.stdout.readline(), TIMEOUT_S):
                return False
        return True

    async def wait_for_recovery(self) -> bool:
        """Wait until it has reconnected and committed; False if it ended before."""
        assert self.child.stdout is not None
        async with asyncio.timeout(RECOVERY_TIMEOUT_S):
            while (line := await self.child.stdout.readline()) not in (b"ready\n", b""):
                pass
            return bool(line and await self.child.stdout.readline())

    def send(self, signal_: signal.Signals) -> None:
        if self.child.returncode is None:
            self.child.send_signal(signal_)

    async def end(self) -> tuple[int, str]:
        assert self.child.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            while await self.child.stdout.read(1 << 16):
                pass
            return await self.child.wait(), (await self.errors).decode()


async def start(kind: str, address: str, boxes: Boxes, size: int) -> WriterProcess:
    args = ("-m", "tests.brokers.writer_program", kind, address, boxes.dead, boxes.ledger, boxes.target, str(size))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, *args, stdout=pipe, stderr=pipe, cwd=REPOSITORY, env=ENVIRONMENT
    )
    assert child.stderr is not None
    return WriterProcess(child, asyncio.ensure_future(child.stderr.read()))


async def kill_and_finish(kind: str, address: str, boxes: Boxes, kills: int, size: int, seed: int) -> None:
    """Kill a writer at random moments, then let another one finish."""
    chance = random.Random(seed)
    for _ in range(kills):
        program = await start(kind, address, boxes, size)
        if await program.wait_for_commits(chance.randint(0, 3)):
            await asyncio.sleep(chance.random() * 0.05)
        program.send(signal.SIGKILL)
        await program.end()
    code, errors = await (await start(kind, address, boxes, size)).end()
    assert code == 0, errors


async def fence_a_stopped_writer(kind: str, address: str, boxes: Boxes) -> None:
    """Stop a writer, let another one finish, continue the first: it must be fenced.

    It prints a line per letter, more than the pipe holds before it is read: it cannot have finished when it is
    stopped.
    """
    stopped = await start(kind, address, boxes, 1)
    try:
        assert await stopped.wait_for_commits(2)
        stopped.send(signal.SIGSTOP)
        code, errors = await (await start(kind, address, boxes, 500)).end()
        assert code == 0, errors
    finally:
        stopped.send(signal.SIGCONT)
    code, errors = await stopped.end()
    # After a stop longer than the timeout of its socket it does not know the result of its commit, and reconnects.
    assert (code == FENCED and "fenced" in errors) or (code == 0 and "again" in errors), errors


async def race_two_writers(kind: str, address: str, boxes: Boxes) -> None:
    """Run two writers on one box: one finishes, the other is fenced or finds nothing to do."""
    both = [await start(kind, address, boxes, 100) for _ in range(2)]
    codes = [code for code, _ in await asyncio.gather(*(program.end() for program in both))]
    assert 0 in codes
    assert set(codes) <= {0, FENCED}


async def publish_letters(broker: Broker, boxes: Boxes, count: int) -> None:
    for start_at in range(0, count, 10_000):
        await publish_all(broker, boxes.dead, numbered_messages(min(10_000, count - start_at), start_at))


async def check_moved_exactly_once(broker: Broker, boxes: Boxes, count: int) -> None:
    """Check that every letter was published once and in order, and that progress and ledger agree."""
    numbers = [int((one.message.value or b"v-1")[1:]) for one in await read_all(broker, boxes.target)]
    seen = Counter(numbers)
    lost, duplicated = sorted(set(range(count)) - seen.keys()), sorted(n for n, times in seen.items() if times > 1)
    assert not lost, f"{len(lost)} lost, from {lost[0]} to {lost[-1]}"
    assert not duplicated, f"{len(duplicated)} duplicated, from {duplicated[0]} to {duplicated[-1]}"
    assert numbers == list(range(count)), "out of order"
    async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
        assert writer.progress is not None
        assert (writer.progress.replayed, writer.progress.scanned) == (count, count)
        assert not any(writer.is_open(one.place.offset) for one in await read_all(broker, boxes.dead))
