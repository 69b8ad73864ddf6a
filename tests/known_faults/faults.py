"""The marker of a known fault, and waits that return False instead of raising a timeout."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest


def known_fault(identifier: str, missing: str) -> pytest.MarkDecorator:
    """Mark a test that asserts the right behaviour, which the product does not have yet.

    Only a failed assertion counts as the expected failure; a broken set-up fails the run. When the fault is fixed the
    test passes, which fails the run too: remove the marker and the line in README.md, and move the test.
    """
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"R-17 {identifier}: {missing}")


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds and return True; return False if it does not within this time."""
    return await wait_until_async(_asynchronous(condition), seconds)


async def wait_until_async(condition: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    """Do the same for a condition that must be awaited."""
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def _asynchronous(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return condition()

    return ask
