"""A chosen letter becomes a draft: a publication, a settlement alone, or the reason why it is left."""

from collections.abc import Callable

from deadletter.api.assignments import ReplayAssignment
from deadletter.api.transform import Patch
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import NotAuthorised
from deadletter.core.dialects.reader import DialectError, restore_message, restore_payload
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Letter, Message
from deadletter.core.replay_progress import Skip
from deadletter.core.transform import Transform, TransformError
from deadletter.workers.replay.letter_results import LetterResult
from deadletter.workers.replay.targets import PublicationTarget

WITH_VALUE = ("add", "replace", "test")


def _operation(patch: Patch) -> dict[str, object]:
    step: dict[str, object] = {"op": patch.op, "path": patch.path}
    if patch.from_ is not None:
        step["from"] = patch.from_
    return step | ({"value": patch.value} if patch.op in WITH_VALUE else {})


def build_transform(assignment: ReplayAssignment) -> Transform | None:
    """What the Replay changes in messages, if anything."""
    spec = assignment.spec.transform
    if spec is None:
        return None
    return Transform(spec.set_headers, spec.remove_headers, [_operation(patch) for patch in spec.json_patch])


class PublicationBuilder:
    """Drafts letters by one Replay's spec; it knows the origin topics it has met."""

    def __init__(self, assignment: ReplayAssignment, broker: Broker, clock: Callable[[], int]) -> None:
        self._spec = assignment.spec
        self._target = PublicationTarget.from_assignment(assignment)
        self._transform = build_transform(assignment)
        self._broker = broker
        self._clock = clock
        self._publishes = assignment.spec.action == "Republish"
        self._previews = assignment.spec.mode == "DryRun"
        self._observes = assignment.observe and self._previews
        self._looks = self._publishes and self._target.kind == "Origin"
        self._partitions: dict[str, int | None] = {}

    def needs_origin_lookup(self, letter: Letter) -> bool:
        """Does it come from a topic that was not looked at yet?"""
        topic = letter.envelope.origin.topic
        return self._looks and topic is not None and topic not in self._partitions

    async def look_up_origin(self, letter: Letter) -> None:
        """Ask the broker whether the letter's origin still exists, and how wide it is."""
        topic = letter.envelope.origin.topic
        if topic is not None:
            self._partitions[topic] = await self._width(topic)

    async def _width(self, topic: str) -> int | None:
        try:
            found = (await self._broker.describe([topic])).get(topic)
        except NotAuthorised:
            if not self._observes:
                raise
            return 1  # who only observes may not see the origin, and nothing is sent there
        return found.partitions if found else None

    def build(self, letter: Letter, scanned: int) -> LetterResult:
        """What becomes of the letter."""
        outcome = LetterResult(letter.place, scanned, letter.message.size, fingerprint(letter.envelope.failure))
        if self._publishes:
            self._address(letter, outcome)
        return outcome

    def _address(self, letter: Letter, outcome: LetterResult) -> None:
        if letter.envelope.replays >= self._spec.max_replays:
            outcome.skip = Skip.LoopCap
            return
        to = self._target.box_for(letter)
        if to is None or (self._looks and self._partitions.get(to) is None):
            outcome.skip = Skip.NoOrigin
            return
        try:
            if self._previews:
                self._try_to_mend(letter)
            else:
                mended = self._mend(letter)
                outcome.publication = self._target.build_publication(
                    to, letter, mended, self._partitions, self._clock()
                )
                outcome.origin = letter.envelope.origin
        except (DialectError, TransformError):
            outcome.skip = Skip.TransformError
        else:
            outcome.target = to

    def _try_to_mend(self, letter: Letter) -> None:
        """A preview asks only whether it could be done; what headers would be left changes nothing about that."""
        if self._transform is None:
            restore_payload(letter.message, letter.envelope)
        else:
            self._transform.apply(restore_message(letter.message, letter.envelope))

    def _mend(self, letter: Letter) -> Message:
        message = restore_message(letter.message, letter.envelope)  # made just now, so it may be changed
        if self._transform is not None:
            message = self._transform.apply(message)
        message.timestamp = self._time(letter)
        return message

    def _time(self, letter: Letter) -> int:
        if self._spec.timestamp == "Now":
            return self._clock()
        return letter.envelope.origin.timestamp or letter.message.timestamp
