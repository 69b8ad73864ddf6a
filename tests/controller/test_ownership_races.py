"""Ownership of a box that others create during a pass, and of one that a broker with stale metadata hides."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.memory.broker import MemoryBroker
from deadletter.brokers.types import BoxState
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile import boxes
from deadletter.controller.reconcile.facts import gather_queue_facts
from deadletter.controller.state.broker_pool import PooledBroker
from deadletter.core.box_types import BoxSpec
from deadletter.core.reasons import Reason
from deadletter.kube import CONNECTIONS, QUEUES, Body
from deadletter.plan.findings import Finding
from deadletter.plan.queue_status import queue_status
from deadletter.settings import Settings
from tests.plan.builders import connection, metadata, plain_queue

DEAD = "orders.dead"


class FakeKube:
    """An API server that stores one queue."""

    def __init__(self) -> None:
        self.body: Body = {"metadata": metadata("orders", resourceVersion="1"), "spec": plain_queue().spec.to_wire()}

    async def patch(self, _resource: Any, _namespace: str, _name: str, patch: Body, _sub: str = "") -> Body:
        status = {**self.body.get("status", {}), **patch.get("status", {})}
        self.body = {**self.body, "status": {key: value for key, value in status.items() if value is not None}}
        return self.body

    async def get(self, _resource: Any, _namespace: str, _name: str) -> Body:
        return self.body


class StaleBroker(MemoryBroker):
    """Leaves the boxes in `hidden` out of the next describe."""

    hidden: frozenset[str] = frozenset()
    after_ensure: Callable[[], None] = staticmethod(lambda: None)

    async def ensure(self, spec: BoxSpec) -> BoxState:
        state = await super().ensure(spec)
        self.after_ensure()
        return state

    async def describe(self, names: Sequence[str]) -> Mapping[str, BoxState]:
        hidden, self.hidden = self.hidden, frozenset()
        return {name: state for name, state in (await super().describe(names)).items() if name not in hidden}


class Scene:
    """An operator with one queue and one broker."""

    def __init__(self) -> None:
        self.api, self.broker = FakeKube(), StaleBroker()
        self.context = OperatorContext(Settings(), self.api)  # type: ignore[arg-type]
        body = {"metadata": metadata("broker", resourceVersion="1"), "spec": connection().spec.to_wire()}
        self.context.informers[CONNECTIONS].upsert(body)
        pooled = PooledBroker(connection().spec, nullcontext(self.broker), self.broker, None)  # type: ignore[arg-type]

        async def get_or_open(_: Any) -> PooledBroker:
            return pooled

        self.context.pool = SimpleNamespace(get_or_open=get_or_open, identities_of=lambda _: frozenset())  # type: ignore[assignment]

    async def reconcile(self) -> Finding | None:
        """Run the part of a pass that concerns boxes, and store the records as its end does."""
        self.context.observed.surveys.clear()
        self.context.informers[QUEUES].upsert(self.api.body)
        queue = DeadLetterQueue.from_body(self.api.body)
        found = await boxes.ensure_boxes(self.context, queue, connection())
        status = queue_status(queue, await gather_queue_facts(self.context, queue), found)
        await self.api.patch(QUEUES, "shop", "orders", {"status": {"ownedBoxes": None, **status}})
        return found

    @property
    def records(self) -> dict[str, tuple[str, bool]]:
        queue = DeadLetterQueue.from_body(self.api.body)
        return {one.name: (one.id, one.found) for one in queue.status.owned_boxes}


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_box_that_others_create_at_the_same_time_stays_theirs(scene: Scene) -> None:
    theirs = await scene.broker.ensure(BoxSpec(DEAD, 1, retention_ms=7_777_777))
    scene.broker.hidden = frozenset({DEAD})
    for _ in range(2):
        found = await scene.reconcile()
        assert found is not None
        assert found.reason is Reason.BoxConflict
        assert scene.records == {}
    assert (await scene.broker.describe([DEAD]))[DEAD] == theirs
    assert found is not None
    assert "take-over" in found.message


async def test_a_box_that_stale_metadata_hid_keeps_its_record(scene: Scene) -> None:
    scene.api.body["status"] = {"depth": 0}  # as 0.2.0 left it
    of_020 = await scene.broker.ensure(BoxSpec(DEAD, 1))
    assert await scene.reconcile() is None
    assert scene.records[DEAD] == (of_020.id, True)
    scene.broker.hidden = frozenset({DEAD})
    assert await scene.reconcile() is not None
    assert await scene.reconcile() is None
    assert scene.records[DEAD] == (of_020.id, True), "deleted only after a confirmation, as before"


async def test_a_box_created_before_a_lost_reply_is_ours(scene: Scene) -> None:
    scene.api.body["status"] = {"ownedBoxes": [{"name": DEAD}, {"name": f"{DEAD}.ledger"}]}
    made = await scene.broker.ensure(BoxSpec(DEAD, 1))
    scene.broker.hidden = frozenset({DEAD})
    assert await scene.reconcile() is None
    assert scene.records[DEAD] == (made.id, False)


async def test_a_queue_that_is_created_again_during_a_pass_does_not_inherit_its_records(scene: Scene) -> None:
    def create_again() -> None:
        new = {**scene.api.body, "metadata": metadata("orders", uid="uid-2", resourceVersion="9"), "status": {}}
        scene.context.on_change(QUEUES, scene.api.body, new)
        scene.context.informers[QUEUES].upsert(new)
        scene.api.body = new

    scene.broker.after_ensure = create_again
    first = DeadLetterQueue.from_body(scene.api.body)
    scene.context.informers[QUEUES].upsert(scene.api.body)
    assert await boxes.ensure_boxes(scene.context, first, connection()) is None
    second = DeadLetterQueue.from_body(scene.api.body)
    found = await boxes.ensure_boxes(scene.context, second, connection())
    assert found is not None
    assert found.reason is Reason.BoxConflict
    assert "ownedBoxes" not in queue_status(second, await gather_queue_facts(scene.context, second), found)
