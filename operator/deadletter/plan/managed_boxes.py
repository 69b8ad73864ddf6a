"""Decide which boxes of a queue the operator may change and delete.

    box      record                          result
    missing  any                             recorded without an id: the next box of this name belongs to the queue,
                                             unless the broker refuses to create it
    exists   the same id, or none yet        belongs to the queue; the id is filled in
    exists   another id                      conflict: others deleted the box and created another one
    exists   none; Ready under 0.2.0         recorded as found; so is a ledger with another id
    exists   none                            conflict: others created the box

The annotation take-over turns a conflict into a record as found. A found box is configured like a created one, but is
deleted only after a confirmation.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.plan.desired_boxes import owned_boxes
from deadletter.plan.findings import Finding

TAKE_OVER_ANNOTATION = (
    "deadletter.dev/take-over"  # its value is the name of the dead box; its retry box and ledger are taken over with it
)
CONFIRM_DELETE_ANNOTATION = "deadletter.dev/confirm-delete"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The records that the queue should have, and the boxes that prevent it from working."""

    records: tuple[OwnedBox, ...]
    taken_over: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # exist without a record
    replaced: tuple[str, ...] = ()  # exist with another id than the recorded one

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Boxes that must be neither configured nor deleted."""
        return self.foreign + self.replaced


def judge_ownership(queue: DeadLetterQueue, redis: bool, ids: Mapping[str, str]) -> Ownership:
    """Compare the records with the boxes on the broker. `ids`: the ids of the existing boxes, by name."""
    known = {one.name: one for one in queue.status.owned_boxes}
    is_upgraded = is_from_release_020(queue)
    boxes = queue.boxes(redis)
    takes_over = queue.metadata.annotations.get(TAKE_OVER_ANNOTATION) == boxes.dead
    records, taken, foreign, replaced = list[OwnedBox](), list[str](), list[str](), list[str]()
    for name in owned_boxes(queue, redis):
        record, found = known.get(name), ids.get(name)
        if found is None:
            records.append(record if record is not None and not record.id else OwnedBox(name=name))
        elif record is not None and record.id in ("", found):
            records.append(with_id(record, ids))
        elif takes_over:
            taken.append(name)
            records.append(OwnedBox(name=name, id=found, found=True))
        # A deleted ledger is created again by the next worker that writes to it, so another id proves nothing.
        elif (record is None and is_upgraded) or (record is not None and name == boxes.ledger):
            records.append(OwnedBox(name=name, id=found, found=True))
        else:
            (foreign if record is None else replaced).append(name)
    return Ownership(tuple(records), tuple(taken), tuple(foreign), tuple(replaced))


def is_from_release_020(queue: DeadLetterQueue) -> bool:
    """True if release 0.2.0, which kept no records, owned the boxes: BoxesReady was True, or letters were counted."""
    ready = queue.status.condition(BOXES_READY)
    was_ready = ready is not None and ready.status == "True"
    return not queue.status.owned_boxes and (was_ready or queue.status.depth is not None)


def with_id(record: OwnedBox, ids: Mapping[str, str]) -> OwnedBox:
    """Return the record with the id that the broker shows now; an id it has already stays."""
    return record if record.id else record.model_copy(update={"id": ids.get(record.name, "")})


def new_intents(old: Collection[OwnedBox], new: Collection[OwnedBox]) -> frozenset[str]:
    """Return the boxes that are missing now and were not before: they must not exist when they are created.

    A box recorded as missing earlier may have been created by this operator since then.
    """
    known = {one.name for one in old if not one.id}
    return frozenset(one.name for one in new if not one.id and one.name not in known)


def without_intents(
    old: Collection[OwnedBox], new: Collection[OwnedBox], withdrawn: Collection[str]
) -> tuple[OwnedBox, ...]:
    """Return the new records, with those of the withdrawn boxes as they were before."""
    known = {one.name: one for one in old}
    return tuple(record for one in new if (record := known.get(one.name) if one.name in withdrawn else one) is not None)


def records_after(
    records: tuple[OwnedBox, ...], existed: Collection[str], ids: Mapping[str, str], refused: Collection[str]
) -> tuple[OwnedBox, ...]:
    """Return the records after boxes were created. `existed`: before; `ids`: now; `refused`: not created by the broker.

    A box that the broker refused to create and that exists later was created by others for this queue: it is found.
    """

    def after(one: OwnedBox) -> OwnedBox:
        if one.name in ids and one.name not in existed:
            return OwnedBox(name=one.name, id=ids[one.name])
        if one.name in refused:
            return OwnedBox(name=one.name, found=True)
        return with_id(one, ids)

    return tuple(after(one) for one in records)


def only_ids_differ(old: tuple[OwnedBox, ...], new: tuple[OwnedBox, ...], ids: Mapping[str, str]) -> bool:
    """True if the records differ only in ids that are new; such a change may be written at the end of the pass."""
    return tuple(with_id(one, ids) for one in old) == new


def conflict_finding(queue: DeadLetterQueue, redis: bool, ownership: Ownership) -> Finding:
    """Return the BoxConflict that names the boxes and the remedies that this queue has."""
    sentences = []
    if ownership.foreign:
        sentences.append(
            f"{_join(ownership.foreign)}: it exists on the broker and this queue did not create it, so it is neither "
            "configured nor deleted. Create the queue with another spec.dead.name"
            + (", or with spec.dead.adopt: true to use the box as it is" if _may_adopt(queue, ownership) else "")
            + "."
        )
    if ownership.replaced:
        sentences.append(
            f"{_join(ownership.replaced)}: it was deleted and created again by others since this queue recorded it, so "
            "it is neither configured nor deleted. Delete the new one to have the queue create its own."
        )
    command = annotate_command(queue, TAKE_OVER_ANNOTATION, queue.boxes(redis).dead)
    sentences.append(f"To give the existing boxes to this queue: {command}")
    return Finding(Reason.BoxConflict, " ".join(sentences), False, BOXES_READY)


def _may_adopt(queue: DeadLetterQueue, ownership: Ownership) -> bool:
    """True if dead.adopt is a remedy: only a dead box can be adopted, and only by a queue without a source."""
    return queue.shape == "Plain" and queue.spec.dead.name in ownership.foreign


def annotate_command(queue: DeadLetterQueue, key: str, value: str) -> str:
    """Return the kubectl command that sets an annotation of the queue."""
    return f"kubectl -n {queue.namespace} annotate dlq/{queue.name} '{key}={value}'"


def _join(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def boxes_to_delete(queue: DeadLetterQueue, ownership: Ownership, ids: Mapping[str, str]) -> tuple[str, ...] | Finding:
    """Return the boxes that `deletionPolicy: Delete` deletes, or the finding that a confirmation is needed first."""
    found = tuple(one.name for one in ownership.records if one.found and one.name in ids)
    if found and queue.metadata.annotations.get(CONFIRM_DELETE_ANNOTATION) != "true":
        message = (
            f"{_join(found)}: spec.deletionPolicy is Delete, but there is no record that the operator created it. "
            f"To delete it with all its letters: {annotate_command(queue, CONFIRM_DELETE_ANNOTATION, 'true')}"
        )
        return Finding(Reason.DeletionBlocked, message, True, BOXES_READY)
    return tuple(one.name for one in ownership.records)
