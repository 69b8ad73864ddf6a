"""The contract of a delivery protocol: one message goes to a service, an outcome comes back.

HTTP is the first implementation (`http/`). Courier and replay use it through `open_delivery` (open.py).
"""

from dataclasses import dataclass
from typing import Protocol

from deadletter.core.letters import SEQUENCE_MASK, Message, Place
from deadletter.workers.delivery.outcome import DeliveryOutcome


@dataclass(slots=True, frozen=True)
class DeliveryMetadata:
    """What a delivery sends in addition to the value and headers of a message."""

    id: str  # the same for every attempt, also after a restart or a replay
    origin: Place
    attempt: int
    timestamp: int | None = None  # of the message at its origin; if unset, that of the delivered message


def idempotency_key(place: Place) -> str:
    """Return the name of a message by its origin: topic, partition and offset, or stream and entry id."""
    if place.offset > SEQUENCE_MASK:
        return f"{place.box}/{place.id}"
    return f"{place.box}/{place.partition}/{place.offset}"


class MessageDelivery(Protocol):
    """Delivers messages to one service. Attempts may run concurrently."""

    async def attempt(self, message: Message, metadata: DeliveryMetadata) -> DeliveryOutcome:
        """Deliver a message once. Every error of the service or its address is an outcome, not an exception."""

    async def close(self) -> None:
        """Close the connections to the service."""
