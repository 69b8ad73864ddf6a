"""Turn a selected letter into a publication for the Replay's target, or into the reason why it is skipped.

Target kinds:

Retry    the queue's own retry box, due now, attempts start at 0 again
Origin   the letter's first topic, in its own partition while that exists, otherwise by key
Box      a box of the same broker
Queue    the source of another queue, maybe on another broker
Service  one subscriber, by HTTP
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deadletter.api.transform import JsonPatchOperation
from deadletter.api.worker_config import ReplayAssignment
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import NotAuthorised
from deadletter.brokers.types import Publication
from deadletter.core import headers
from deadletter.core.dialects.base import DialectError
from deadletter.core.dialects.reader import restore_message, restore_payload
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import Envelope, Letter, Message, Place
from deadletter.core.replay_progress import Skip
from deadletter.core.transform import Transform, TransformError
from deadletter.workers.delivery.base import idempotency_key
from deadletter.workers.replay.batch_results import LetterResult

OPERATIONS_WITH_VALUE = ("add", "replace", "test")
SERVICE_NAME = "service"  # the target's name in the progress


def _json_patch_operation(patch: JsonPatchOperation) -> dict[str, object]:
    operation: dict[str, object] = {"op": patch.op, "path": patch.path}
    if patch.from_ is not None:
        operation["from"] = patch.from_
    return operation | ({"value": patch.value} if patch.op in OPERATIONS_WITH_VALUE else {})


def build_transform(assignment: ReplayAssignment) -> Transform | None:
    """Return the transform of the spec, None if messages are sent unchanged."""
    spec = assignment.spec.transform
    if spec is None:
        return None
    return Transform(spec.set_headers, spec.remove_headers, [_json_patch_operation(patch) for patch in spec.json_patch])


def message_id(letter: Letter) -> str:
    """Return the id that stays with the message: the one it carries, else its origin, else the place of its letter."""
    origin = letter.envelope.origin
    if letter.envelope.id:
        return letter.envelope.id
    if origin.topic is None or origin.offset is None:
        return f"{letter.place.box}/{letter.place.id}"
    return idempotency_key(Place(origin.topic, origin.partition or 0, origin.offset))


@dataclass(slots=True, frozen=True)
class PublicationTarget:
    """Where the Replay `uid` sends letters; `partitions` arguments map a topic to its width, None if it is missing."""

    kind: str
    box: str
    uid: str

    @classmethod
    def from_assignment(cls, assignment: ReplayAssignment) -> "PublicationTarget":
        """Return the box or Service that this Replay sends letters to, as the operator resolved it."""
        target = assignment.target
        box = target.box or (assignment.boxes.retry if target.kind == "Retry" else None) or ""
        return cls(target.kind, SERVICE_NAME if target.kind == "Service" else box, assignment.uid)

    def box_for(self, letter: Letter) -> str | None:
        """Return the box that the letter is sent to; None if its origin is unknown or is the dead box itself."""
        if self.kind != "Origin":
            return self.box
        topic = letter.envelope.origin.topic
        return None if topic == letter.place.box else topic

    def build_publication(
        self, box: str, letter: Letter, message: Message, partitions: Mapping[str, int | None], now: int
    ) -> Publication:
        """Return the publication of the restored message to this box."""
        if self.kind == "Retry":
            return Publication(
                box, headers.add_headers(message, self._retry_envelope(letter, now)), letter.place, due_at=now
            )
        stamped = headers.add_replay_headers(message, message_id(letter), self.uid, letter.envelope.replays + 1)
        return Publication(box, stamped, letter.place, self._partition(box, letter, partitions))

    def _partition(self, box: str, letter: Letter, partitions: Mapping[str, int | None]) -> int | None:
        origin_partition = letter.envelope.origin.partition
        if self.kind != "Origin" or origin_partition is None or origin_partition < 0:
            return None
        return origin_partition if origin_partition < (partitions.get(box) or 0) else None

    def _retry_envelope(self, letter: Letter, now: int) -> Envelope:
        known = letter.envelope
        return Envelope(
            origin=known.origin,
            group=known.group,
            due_at=now,
            replays=known.replays + 1,
            replay=self.uid,
            id=message_id(letter),
        )


class PublicationBuilder:
    """Builds the results of letters by the spec of one Replay; caches which origin topics exist."""

    def __init__(self, assignment: ReplayAssignment, broker: Broker, clock: Callable[[], int]) -> None:
        self._spec = assignment.spec
        self._target = PublicationTarget.from_assignment(assignment)
        self._transform = build_transform(assignment)
        self._broker = broker
        self._clock = clock
        self._publishes = assignment.spec.action == "Republish"
        self._is_dry_run = assignment.spec.mode == "DryRun"
        self._is_read_only = assignment.observe and self._is_dry_run
        self._checks_origin = self._publishes and self._target.kind == "Origin"
        self._partitions: dict[str, int | None] = {}

    def needs_origin_lookup(self, letter: Letter) -> bool:
        """True if `look_up_origin` must be called before `build`: the letter's origin topic is not cached yet."""
        topic = letter.envelope.origin.topic
        return self._checks_origin and topic is not None and topic not in self._partitions

    async def look_up_origin(self, letter: Letter) -> None:
        """Ask the broker whether the letter's origin topic exists and how many partitions it has."""
        topic = letter.envelope.origin.topic
        if topic is not None:
            self._partitions[topic] = await self._count_partitions(topic)

    async def _count_partitions(self, topic: str) -> int | None:
        try:
            found = (await self._broker.describe([topic])).get(topic)
        except NotAuthorised:
            if not self._is_read_only:
                raise
            return 1  # an observer may lack the right to describe the origin; nothing is sent there
        return found.partitions if found else None

    def build(self, letter: Letter, scanned: int) -> LetterResult:
        """Return the result for a letter; `scanned` is how many letters its batch had read, including this one."""
        result = LetterResult(letter.place, scanned, letter.message.size, fingerprint(letter.envelope.failure))
        if self._publishes:
            self._add_publication(letter, result)
        return result

    def _add_publication(self, letter: Letter, result: LetterResult) -> None:
        if letter.envelope.replays >= self._spec.max_replays:
            result.skip = Skip.LoopCap
            return
        box = self._target.box_for(letter)
        if box is None or (self._checks_origin and self._partitions.get(box) is None):
            result.skip = Skip.NoOrigin
            return
        try:
            if self._is_dry_run:
                self._check_transform(letter)
            else:
                message = self._restore_and_transform(letter)
                result.publication = self._target.build_publication(
                    box, letter, message, self._partitions, self._clock()
                )
                result.origin = letter.envelope.origin
        except (DialectError, TransformError):
            result.skip = Skip.TransformError
        else:
            result.target = box

    def _check_transform(self, letter: Letter) -> None:
        """Raise what the real Replay would raise; without a transform the headers need no work to know that."""
        if self._transform is None:
            restore_payload(letter.message, letter.envelope)
        else:
            self._transform.apply(restore_message(letter.message, letter.envelope))

    def _restore_and_transform(self, letter: Letter) -> Message:
        message = restore_message(letter.message, letter.envelope)  # a fresh copy, so it may be changed
        if self._transform is not None:
            message = self._transform.apply(message)
        message.timestamp = self._timestamp(letter)
        return message

    def _timestamp(self, letter: Letter) -> int:
        if self._spec.timestamp == "Now":
            return self._clock()
        return letter.envelope.origin.timestamp or letter.message.timestamp
