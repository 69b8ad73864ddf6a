"""Which round a letter is in: 1 + the highest round that published where it was last consumed from.

An application that keeps our headers tells it by `dlq-replays`; the greater of both counts.
"""

from deadletter.brokers.base import Broker, Produced
from deadletter.core.letters import Envelope

MOST = 32  # later rounds share the last name: a policy that retries for ever needs no more


def uid(round_: int) -> str:
    """The name under which a round publishes."""
    return f"redrive-{min(round_, MOST)}"


def closes_loop(envelope: Envelope) -> bool:
    """Can a return of this letter be recognised?"""
    return envelope.replay is not None or (envelope.hop.topic is not None and envelope.hop.offset is not None)


class Rounds:
    """What each round published, read when first asked for and again after it published more."""

    def __init__(self, broker: Broker, ledger: str, rounds: int) -> None:
        self._broker = broker
        self._ledger = ledger
        self._rounds = range(1, min(rounds, MOST) + 1)
        self._produced: dict[int, Produced] = {}

    async def refresh(self) -> None:
        """Know what every round published so far."""
        for round_ in self._rounds:
            if round_ not in self._produced:
                self._produced[round_] = await self._broker.produced(self._ledger, uid(round_))

    def published(self, round_: int) -> None:
        """This round published more: what is known of it is old."""
        self._produced.pop(min(round_, MOST), None)

    def of(self, envelope: Envelope) -> int:
        """The round the letter would be sent in now; 1: it was never sent back."""
        hop, highest = envelope.hop, 0
        if hop.topic is not None and hop.offset is not None:
            for round_, produced in self._produced.items():
                if round_ > highest and produced.holds(hop.topic, hop.partition or 0, hop.offset):
                    highest = round_
        return 1 + max(highest, envelope.replays)
