"""A box that exists keeps its limit for messages where the broker refuses the larger one of the source."""

from dataclasses import dataclass, field

import pytest

from deadletter.brokers.errors import BoxConflict
from deadletter.brokers.types import BoxState
from deadletter.controller.reconcile.boxes import _ensure_box
from deadletter.core.box_types import BoxSpec

WANTED = BoxSpec("orders.dlq", 3, min_message_bytes=2_000_000)


@dataclass
class StrictBroker:
    """A broker with a policy that allows no topic to raise max.message.bytes."""

    asked: list[BoxSpec] = field(default_factory=list)

    async def ensure(self, spec: BoxSpec) -> BoxState:
        self.asked.append(spec)
        if spec.min_message_bytes is not None:
            raise BoxConflict("topic orders.dlq cannot be configured: refused by the policy")
        return BoxState("orders.dlq", 3)


async def test_an_existing_box_is_left_with_its_limit():
    broker = StrictBroker()
    assert await _ensure_box(broker, WANTED, exists=True) == BoxState("orders.dlq", 3)
    assert [spec.min_message_bytes for spec in broker.asked] == [2_000_000, None]


async def test_a_new_box_reports_the_refusal():
    broker = StrictBroker()
    with pytest.raises(BoxConflict, match="policy"):
        await _ensure_box(broker, WANTED, exists=False)
    assert broker.asked == [WANTED]
