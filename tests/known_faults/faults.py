"""The marker of a known fault, and waiting that ends in an assertion instead of a timeout."""

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


async def waited(condition: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition holds; False if it does not within so many seconds."""
    return await waited_for(_asynchronous(condition), seconds)


async def waited_for(condition: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    """The same for a condition that must be awaited."""
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
