"""A worker that a test can hold while a transaction is open: everything is sent, nothing is committed yet.

    python -m tests.workers.holdpoints FOLDER ROLE

If the folder contains the file `hold`, the next commit renames it to `held` and waits until it is removed.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from deadletter.__main__ import main
from tests.workers.http_service import until

HOLD, HELD = "hold", "held"


def arm(folder: Path) -> None:
    """Make commits wait while the folder contains the file `held`."""
    commit = AIOKafkaProducer.commit_transaction

    async def held(self: Any) -> None:
        if (folder / HOLD).exists():
            (folder / HOLD).rename(folder / HELD)
            while (folder / HELD).exists():
                await asyncio.sleep(0.02)
        await commit(self)

    AIOKafkaProducer.commit_transaction = held


async def hold(folder: Path, seconds: float = 90.0) -> None:
    """Hold the worker of this folder before its next commit; return when it waits there."""
    (folder / HOLD).touch()
    await until(lambda: (folder / HELD).exists(), seconds)


def release(folder: Path) -> None:
    """Let the worker continue; it may have given up already."""
    (folder / HOLD).unlink(missing_ok=True)
    (folder / HELD).unlink(missing_ok=True)


if __name__ == "__main__":
    arm(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
