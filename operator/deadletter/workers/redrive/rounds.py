"""Which round a letter is in: 1 + the highest round that published where it was last consumed or first came from.

An application that keeps our headers tells it by `dlq-replays`; the greater of both counts.
"""

from deadletter.brokers.contract import Broker, PublishedPositions
from deadletter.core.letters import Envelope
from deadletter.core.policy import Policy
from deadletter.workers.replay.failed_again import was_produced

UID_PREFIX = "redrive-"
MAX_NAMED_ROUND = 32  # later rounds share the last name: a policy that retries for ever needs no more


def round_uid(round_: int) -> str:
    """The name under which a round publishes."""
    return f"{UID_PREFIX}{min(round_, MAX_NAMED_ROUND)}"


def can_recognise_return(envelope: Envelope) -> bool:
    """Can a return of this letter be recognised?"""
    places = (envelope.hop, envelope.origin)
    return envelope.replay is not None or any(place.topic is not None and place.offset is not None for place in places)


def max_rounds(policy: Policy) -> int:
    """How often a letter may fail at most: by the policy, or by a rule of it that is more patient."""
    if any(rule.action == "RetryForever" for rule in policy.rules):
        return max(MAX_NAMED_ROUND, policy.max_attempts)
    return max(policy.max_attempts, *(rule.max_attempts or 0 for rule in policy.rules), 0)


class Rounds:
    """What each round published, read when first asked for and again after it published more."""

    def __init__(self, broker: Broker, ledger: str, rounds: int) -> None:
        self._broker = broker
        self._ledger = ledger
        self._most = rounds
        self._rounds = range(1, min(rounds, MAX_NAMED_ROUND) + 1)
        self._produced: dict[int, PublishedPositions] = {}

    async def refresh(self) -> None:
        """Know what every round published so far."""
        for round_ in self._rounds:
            if round_ not in self._produced:
                self._produced[round_] = await self._broker.published_positions(self._ledger, round_uid(round_))

    def invalidate(self, round_: int) -> None:
        """This round published more: what is known of it is old."""
        self._produced.pop(min(round_, MAX_NAMED_ROUND), None)

    def next_round(self, envelope: Envelope) -> int:
        """The round the letter would be sent in now; 1: it was never sent back."""
        highest = max((round_ for round_, found in self._produced.items() if was_produced(envelope, found)), default=0)
        if highest == MAX_NAMED_ROUND:  # or a later one of the same name: who wants a limit has reached it
            highest = max(MAX_NAMED_ROUND, self._most - 1)
        return 1 + max(highest, envelope.replays)
