"""Cleaning the ledger after a Replay was deleted."""

from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.controller import deleted_replays
from deadletter.controller.context import OperatorContext
from deadletter.controller.state.broker_pool import PooledBroker
from deadletter.controller.state.dependents import REPLAY_INDEXES
from deadletter.controller.state.informer import Informer, InformerSpec
from deadletter.kube import QUEUES, REPLAYS, ApiError, Body
from deadletter.settings import Settings
from tests.plan.builders import connection, metadata, plain_queue


class FakeKube:
    """An API server on which one object exists, or which answers with an error."""

    def __init__(self, existing: Body | None, error_status: int) -> None:
        self.existing, self.error_status = existing, error_status

    async def get(self, *_: Any) -> Body | None:
        if self.error_status:
            raise ApiError(self.error_status, "no")
        return self.existing


def replay(name: str = "back", uid: str = "uid-back", version: str = "1", **more: Any) -> Body:
    spec, status = {"queueRef": {"name": "orders"}}, {"startTime": "2026-11-16T00:00:00Z"}
    head = metadata(name, uid=uid, resourceVersion=version)
    return {"metadata": head, "spec": spec | more, "status": status}


def test_a_preview_is_in_use_until_the_replay_that_names_it_has_ended() -> None:
    replays = Informer(InformerSpec(REPLAYS, "", REPLAY_INDEXES), lambda *_: None)
    context: Any = SimpleNamespace(informers={REPLAYS: replays})
    preview = replay("dry")
    assert not deleted_replays.is_preview_in_use(context, preview)
    replays.upsert(replay(version="2", previewRef={"name": "dry"}))
    assert deleted_replays.is_preview_in_use(context, preview)
    ended = replay(version="3", previewRef={"name": "dry"})
    replays.upsert(ended | {"status": {"completionTime": "2026-11-16T00:00:00Z"}})
    assert not deleted_replays.is_preview_in_use(context, preview)


@pytest.mark.parametrize(
    ("existing", "error_status", "is_cleaned", "is_retried"),
    [
        (None, 0, True, False),
        (replay(uid="another"), 0, True, False),
        (replay(), 0, False, False),
        (None, 503, False, True),
        (None, 403, False, False),
    ],
)
async def test_a_ledger_is_cleaned_only_if_the_replay_does_not_exist(
    existing: Body | None, error_status: int, is_cleaned: bool, is_retried: bool
) -> None:
    context = OperatorContext(Settings(), FakeKube(existing, error_status))  # type: ignore[arg-type]
    queue = {"metadata": metadata("orders", resourceVersion="1"), "spec": plain_queue().spec.to_wire()}
    context.informers[QUEUES].upsert(queue)
    cleaned: list[str] = []

    async def delete_replay_records(_: str, uid: str) -> None:
        cleaned.append(uid)

    broker: Any = SimpleNamespace(delete_replay_records=delete_replay_records)
    context.pool._brokers["shop", "broker"] = PooledBroker(connection().spec, None, broker, None)  # type: ignore[arg-type]
    context.informers[REPLAYS].upsert(replay(version="2"))
    context.informers[REPLAYS].remove(replay())
    deleted, context.deleted_replays = context.deleted_replays, []
    await deleted_replays.clean_ledger(context, deleted[0])
    assert cleaned == (["uid-back"] if is_cleaned else [])
    assert context.deleted_replays == (deleted if is_retried else [])
