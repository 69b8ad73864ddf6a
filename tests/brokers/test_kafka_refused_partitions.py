"""A partition that a transaction may not write to: nothing is sent to it, so no letter appears twice."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka.producer.sender import AddPartitionsToTxnHandler
from aiokafka.producer.transaction_manager import TransactionState

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Buried
from tests.bed import beds
from tests.brokers.connections import LOOPBACK, fresh_name, kafka_at, no_secrets
from tests.brokers.helpers import Boxes, claim_some, make_boxes, numbered_messages, publish_all, values
from tests.brokers.secured_kafka import (
    ALL_OPERATIONS,
    ALLOW,
    DENY,
    GROUP,
    PASSWORD,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    SecuredKafka,
    grant_acl,
    open_secured_kafka,
    revoke_acl,
)

pytestmark = pytest.mark.server


@dataclass
class Users:
    """The boxes of a queue as a user with every right sees them, and as the guest does whose courier buries."""

    secured: SecuredKafka
    admin: Broker
    guest: Broker
    boxes: Boxes


@pytest.fixture
async def users(bed: beds.Bed) -> AsyncIterator[Users]:
    secured, name = open_secured_kafka(bed), fresh_name("refused")
    await grant_acl(secured, ALLOW, ALL_OPERATIONS, (TOPIC, name), (GROUP, name), (TRANSACTIONAL_ID, f"dlq.{name}"))
    given = {"username": b"guest", "password": PASSWORD.encode(), "ca.crt": (secured.files / "ca.crt").read_bytes()}
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
    tls = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
    spec = {"kafka": {"bootstrapServers": [secured.login], "tls": tls, "sasl": sasl}}
    guest_spec = BrokerConnectionSpec.model_validate(spec)
    async with (
        open_broker(kafka_at(secured.plain), no_secrets, LOOPBACK) as admin,
        open_broker(guest_spec, lambda _, key: given[key], LOOPBACK) as guest,
    ):
        boxes = await make_boxes(admin, name)
        await publish_all(admin, boxes.source, numbered_messages(3))
        yield Users(secured, admin, guest, boxes)


@pytest.fixture
def allowed_when_refused(users: Users, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the guest the denied right right after a partition was refused; the list names the refused topics."""
    add, refused = AddPartitionsToTxnHandler.do, list[str]()

    async def add_then_allow(self: Any, node: int) -> Any:
        topics = [tp.topic for tp in self._tps]
        result = await add(self, node)
        if self._sender._txn_manager.state is TransactionState.ABORTABLE_ERROR:
            refused.extend(topics)
            await revoke_acl(users.secured, DENY, WRITE, *((TOPIC, topic) for topic in topics))
        return result

    monkeypatch.setattr(AddPartitionsToTxnHandler, "do", add_then_allow)
    return refused


@pytest.mark.parametrize("buried_before", [0, 1])
async def test_a_letter_whose_partition_was_refused_is_in_the_dead_box_once(
    users: Users, allowed_when_refused: list[str], buried_before: int
) -> None:
    """The right is granted between the refusal and the send, which the driver would still do.

    The broker would then append the letter outside of the transaction, and the next commit would make it visible.
    """
    boxes = users.boxes
    async with users.guest.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 3)
        for claim in claims[:buried_before]:
            await subscription.settle(claim, Buried(boxes.dead, claim.message))
        await grant_acl(users.secured, DENY, WRITE, (TOPIC, boxes.dead))
        for claim in claims[buried_before:]:
            await subscription.settle(claim, Buried(boxes.dead, claim.message))
    assert allowed_when_refused == [boxes.dead]
    assert await values(users.admin, boxes.dead) == [b"v0", b"v1", b"v2"]
