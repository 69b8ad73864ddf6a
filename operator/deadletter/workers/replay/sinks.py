"""Carriers bring publications where the mover cannot: to another broker or to a service. At least once, same id."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from deadletter.api.delivery import HttpDelivery
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core import headers
from deadletter.core.letters import Message, Place
from deadletter.workers.delivery.http.client import HttpClient
from deadletter.workers.delivery.http.errors import HttpError
from deadletter.workers.delivery.http.request import DeliveryMetadata, RequestRenderer
from deadletter.workers.replay.batch import LetterResult

ATTEMPTS = 5
FIRST_WAIT_S = 0.5
SECONDS = 30.0
IN_FLIGHT = 64
AWAY = frozenset((408, 425, 429, 502, 503, 504))  # says nothing about the letter


class Undelivered(Exception):
    """The service does not answer, or answers that it cannot now; time may mend it."""


class Carrier(Protocol):
    """Carries a batch before it is settled."""

    async def carry(self, outcomes: Sequence[LetterResult]) -> None:
        """All of it has arrived when this returns; an outcome may be marked as refused."""


class BrokerCarrier:
    """To a box of another broker."""

    def __init__(self, broker: Broker, uid: str) -> None:
        self.broker = broker
        self._uid = uid

    async def carry(self, outcomes: Sequence[LetterResult]) -> None:
        """Append them there; on Redis a letter that this Replay brought before is not repeated."""
        publications = [self._named(outcome.publication) for outcome in outcomes if outcome.publication is not None]
        if publications:
            await self.broker.publish(publications)

    def _named(self, publication: Publication) -> Publication:
        """A box of the same name, on a third broker or made again, holds other letters at the same places."""
        place = publication.letter
        return replace(publication, letter=Place(f"{self._uid}/{place.box}", place.partition, place.offset))


def _is_final(status: int, attempt: int) -> bool:
    """Does this answer decide about the letter?"""
    if status in AWAY:
        return False
    return status < 500 or attempt == ATTEMPTS


def _waybill(outcome: LetterResult, publication: Publication, attempt: int) -> DeliveryMetadata:
    """As a courier's: where the message first came from, or, where that is not known, where its letter lies."""
    known, origin, place = headers.read_headers(dict(publication.message.headers)), outcome.origin, publication.letter
    if origin is not None and origin.topic is not None and origin.offset is not None:
        place = Place(origin.topic, origin.partition or 0, origin.offset)
    return DeliveryMetadata(known.id or place.id, place, attempt, origin.timestamp if origin is not None else None)


class ServiceCarrier:
    """Straight to one subscriber."""

    def __init__(
        self, client: HttpClient, http: HttpDelivery, requests: RequestRenderer, in_flight: int = IN_FLIGHT
    ) -> None:
        self._client = client
        self._http = http
        self._requests = requests
        self._slots = asyncio.Semaphore(in_flight)

    async def carry(self, outcomes: Sequence[LetterResult]) -> None:
        """Deliver them, several at once; Undelivered when the service is away for one in all of a few attempts.

        One that it breaks at every time is refused, as one that it does not want.
        """
        sent = await asyncio.gather(
            *(self._deliver(outcome) for outcome in outcomes if outcome.publication is not None),
            return_exceptions=True,
        )
        for fault in sent:
            if isinstance(fault, BaseException):
                raise fault

    async def _deliver(self, outcome: LetterResult) -> None:
        if outcome.publication is None:
            return
        async with self._slots:
            for attempt in range(1, ATTEMPTS + 1):
                status = await self._send(outcome.publication.message, _waybill(outcome, outcome.publication, attempt))
                if status is not None and _is_final(status, attempt):
                    outcome.is_refused = not self._http.is_success(status)
                    return
                if attempt < ATTEMPTS:
                    await asyncio.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
        raise Undelivered("The service took a letter in none of a few attempts.")

    async def _send(self, message: Message, waybill: DeliveryMetadata) -> int | None:
        head = self._requests.head(message, waybill)
        try:
            return (await self._client.exchange(head, message.value or b"", SECONDS)).status
        except HttpError as error:
            if error.is_of_queue:
                raise Undelivered(str(error)) from error
            return None
