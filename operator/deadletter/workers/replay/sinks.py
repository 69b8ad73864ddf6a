"""Sinks send publications where the partition writer cannot: to another broker or to a service.

Delivery is at least once, with the same id each time.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core import headers
from deadletter.core.letters import Place
from deadletter.workers.backoff import ExponentialDelay
from deadletter.workers.delivery.base import DeliveryMetadata, MessageDelivery
from deadletter.workers.delivery.outcome import DeliveryOutcome
from deadletter.workers.replay.batch_results import LetterResult

MAX_ATTEMPTS = 5
INITIAL_DELAY_S = 0.5
MAX_DELAY_S = 10.0
SERVICE_TIMEOUT_S = 30.0
MAX_IN_FLIGHT = 64
RETRYABLE_STATUSES = frozenset((408, 425, 429, 502, 503, 504))  # they say nothing about the letter


class Undelivered(Exception):
    """The service cannot be reached or accepts nothing now; a later try may succeed."""


class Sink(Protocol):
    """Receives the publications of a batch before the batch is settled."""

    async def send(self, results: Sequence[LetterResult]) -> None:
        """Send the publications and return when all have arrived; marks the results that were refused."""


class BrokerSink:
    """Publishes to a box of another broker."""

    def __init__(self, broker: Broker, uid: str) -> None:
        self.broker = broker
        self._uid = uid

    async def send(self, results: Sequence[LetterResult]) -> None:
        """Publish them; on Redis a letter that this Replay has sent before is not repeated."""
        publications = [
            self._with_unique_id(result.publication) for result in results if result.publication is not None
        ]
        if publications:
            await self.broker.publish(publications)

    def _with_unique_id(self, publication: Publication) -> Publication:
        # A box of the same name, on a third broker or created again, has other letters at the same offsets.
        place = publication.letter
        return replace(publication, letter=Place(f"{self._uid}/{place.box}", place.partition, place.offset))


class ServiceSink:
    """Delivers to a service, several letters at once."""

    def __init__(self, delivery: MessageDelivery, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._delivery = delivery
        self._slots = asyncio.Semaphore(max_in_flight)

    async def send(self, results: Sequence[LetterResult]) -> None:
        """Deliver them; Undelivered if the service does not answer for one of them in a few attempts.

        A letter that makes the service fail every time is refused, like one that the service rejects.
        """
        deliveries = (self._deliver(result, result.publication) for result in results if result.publication is not None)
        for error in await asyncio.gather(*deliveries, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    async def _deliver(self, result: LetterResult, publication: Publication) -> None:
        delay = ExponentialDelay(INITIAL_DELAY_S, MAX_DELAY_S)
        async with self._slots:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                metadata = _delivery_metadata(result, publication, attempt)
                outcome = await self._delivery.attempt(publication.message, metadata)
                if _is_final(outcome, attempt):
                    result.is_refused = not outcome.is_accepted
                    return
                if attempt < MAX_ATTEMPTS:
                    await asyncio.sleep(delay.next())
        raise Undelivered(f"The service did not accept or reject a letter in {MAX_ATTEMPTS} attempts.")


def _is_final(outcome: DeliveryOutcome, attempt: int) -> bool:
    """True if the outcome decides about the letter; Undelivered if the target itself has a fault."""
    failure = outcome.failure
    if outcome.is_accepted or failure is None:
        return True
    if outcome.fault:
        raise Undelivered(f"The service cannot be reached: {failure.message}.")
    if failure.status is None or failure.status in RETRYABLE_STATUSES:
        return False
    return failure.status < 500 or attempt == MAX_ATTEMPTS


def _delivery_metadata(result: LetterResult, publication: Publication, attempt: int) -> DeliveryMetadata:
    """Return the same metadata as a courier: the origin of the message, or the place of its letter if unknown."""
    known, origin, place = headers.read_headers(dict(publication.message.headers)), result.origin, publication.letter
    if origin is not None and origin.topic is not None and origin.offset is not None:
        place = Place(origin.topic, origin.partition or 0, origin.offset)
    return DeliveryMetadata(known.id or place.id, place, attempt, origin.timestamp if origin is not None else None)
