"""The operator process as a whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.controller import main
from deadletter.settings import Settings


async def test_an_informer_that_fails_before_it_has_synced_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes restarts the pod then; otherwise the operator would wait for that informer without end."""

    @asynccontextmanager
    async def connect(*_: Any) -> AsyncIterator[Any]:
        async def fail(*_: Any) -> Any:
            raise KeyError("an unexpected error")

        yield SimpleNamespace(list=fail)

    monkeypatch.setattr(main, "connect", connect)
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="informer-"):
            await main.run(Settings(health_port=0), asyncio.Event())
