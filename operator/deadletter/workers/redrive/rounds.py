"""Find the round of a letter: 1 + the highest round that published where it was last consumed or first came from.

If the application keeps our headers, `dlq-replays` gives the round too; the greater of both counts.
"""

from deadletter.brokers.contract import Broker, PublishedPositions
from deadletter.core.letters import Envelope
from deadletter.core.policy import Policy
from deadletter.workers.replay.failed_again import was_produced

UID_PREFIX = "redrive-"
MAX_NAMED_ROUND = 32  # later rounds share the last uid: enough also for a policy that retries without limit


def round_uid(round_: int) -> str:
    """Return the Replay uid under which a round publishes."""
    return f"{UID_PREFIX}{min(round_, MAX_NAMED_ROUND)}"


def can_recognise_return(envelope: Envelope) -> bool:
    """True if this letter can be recognised when it fails again."""
    places = (envelope.hop, envelope.origin)
    return envelope.replay is not None or any(place.topic is not None and place.offset is not None for place in places)


def max_rounds(policy: Policy) -> int:
    """Return the most attempts that the policy or one of its rules allows."""
    if any(rule.action == "RetryForever" for rule in policy.rules):
        return max(MAX_NAMED_ROUND, policy.max_attempts)
    return max(policy.max_attempts, *(rule.max_attempts or 0 for rule in policy.rules), 0)


class Rounds:
    """Caches where each round published; a round is read again after it published more."""

    def __init__(self, broker: Broker, ledger: str, rounds: int) -> None:
        self._broker = broker
        self._ledger = ledger
        self._max_rounds = rounds
        self._named_rounds = range(1, min(rounds, MAX_NAMED_ROUND) + 1)
        self._published: dict[int, PublishedPositions] = {}

    async def refresh(self) -> None:
        """Read the rounds that are not cached."""
        for round_ in self._named_rounds:
            if round_ not in self._published:
                self._published[round_] = await self._broker.published_positions(self._ledger, round_uid(round_))

    def invalidate(self, round_: int) -> None:
        """Drop a round from the cache because it publishes more."""
        self._published.pop(min(round_, MAX_NAMED_ROUND), None)

    def next_round(self, envelope: Envelope) -> int:
        """Return the round that would send the letter now; 1 if it was never sent back."""
        highest = max((round_ for round_, found in self._published.items() if was_produced(envelope, found)), default=0)
        if highest == MAX_NAMED_ROUND:  # or a later round of the same uid: treat a limit of the policy as reached
            highest = max(MAX_NAMED_ROUND, self._max_rounds - 1)
        return 1 + max(highest, envelope.replays)
