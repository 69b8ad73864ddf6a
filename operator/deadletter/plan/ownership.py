"""Which boxes of a queue the operator may change and delete.

    box      record                          result
    missing  any                             recorded without an id: the next box of this name is ours, unless the
                                             broker refuses to create it
    exists   the same id, or none yet        ours; the id is filled in
    exists   another id                      conflict: others deleted the box and created another one
    exists   none; Ready under 0.2.0         recorded as found; so is a ledger with another id
    exists   none                            conflict: others created the box

The annotation take-over turns a conflict into a record as found. A found box is configured like one of ours, but is
deleted only after a confirmation.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.api.queue_status import OwnedBox
from deadletter.core.condition_types import BOXES_READY
from deadletter.core.reasons import Reason
from deadletter.plan.boxes import owned_boxes
from deadletter.plan.findings import Finding

TAKE_OVER_ANNOTATION = "deadletter.dev/take-over"  # the name of the dead box; its retry box and ledger are meant too
CONFIRM_DELETE_ANNOTATION = "deadletter.dev/confirm-delete"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The records that the queue should have, and the boxes that stand in its way."""

    records: tuple[OwnedBox, ...]
    taken_over: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # exist without a record
    replaced: tuple[str, ...] = ()  # exist with another id than the recorded one

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Boxes that must not be touched."""
        return self.foreign + self.replaced


def judge_ownership(queue: DeadLetterQueue, redis: bool, ids: Mapping[str, str]) -> Ownership:
    """Compare the records with the boxes on the broker. `ids`: of the boxes that exist, by name."""
    known = {one.name: one for one in queue.status.owned_boxes}
    trusts = is_from_release_020(queue)
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
        # A ledger is created again by the next worker that writes to it, which cannot be told from others.
        elif (record is None and trusts) or (record is not None and name == boxes.ledger):
            records.append(OwnedBox(name=name, id=found, found=True))
        else:
            (foreign if record is None else replaced).append(name)
    return Ownership(tuple(records), tuple(taken), tuple(foreign), tuple(replaced))


def is_from_release_020(queue: DeadLetterQueue) -> bool:
    """True if 0.2.0, which kept no records, had this queue's boxes: it called them ready, or counted letters."""
    ready = queue.status.condition(BOXES_READY)
    was_ready = ready is not None and ready.status == "True"
    return not queue.status.owned_boxes and (was_ready or queue.status.depth is not None)


def with_id(record: OwnedBox, ids: Mapping[str, str]) -> OwnedBox:
    """The record with the id that the broker shows now, unless it has one."""
    return record if record.id else record.model_copy(update={"id": ids.get(record.name, "")})


def new_intents(old: Collection[OwnedBox], new: Collection[OwnedBox]) -> frozenset[str]:
    """The boxes that were found missing just now: they must not exist when they are created.

    One that was recorded as missing before may have been created by us since then.
    """
    known = {one.name for one in old if not one.id}
    return frozenset(one.name for one in new if not one.id and one.name not in known)


def without_intents(
    old: Collection[OwnedBox], new: Collection[OwnedBox], withdrawn: Collection[str]
) -> tuple[OwnedBox, ...]:
    """The new records, but for the withdrawn ones what was recorded before."""
    known = {one.name: one for one in old}
    return tuple(record for one in new if (record := known.get(one.name) if one.name in withdrawn else one) is not None)


def records_after(
    records: tuple[OwnedBox, ...], existed: Collection[str], ids: Mapping[str, str], refused: Collection[str]
) -> tuple[OwnedBox, ...]:
    """The records after boxes were created. `existed`: before; `ids`: now; `refused`: what the broker did not create.

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
    """True if no box was added, removed or recorded again; such a change may wait for the end of the pass."""
    return tuple(with_id(one, ids) for one in old) == new


def conflict_finding(queue: DeadLetterQueue, redis: bool, judged: Ownership) -> Finding:
    """Build the BoxConflict that names the boxes in the way and the remedies this queue has."""
    sentences = []
    if judged.foreign:
        sentences.append(
            f"{_listed(judged.foreign)}: it exists on the broker and this queue did not create it, so it is neither "
            "configured nor deleted. Create the queue with another dead.name"
            + (", or with dead.adopt: true to use the box as it is" if _may_adopt(queue, judged) else "")
            + "."
        )
    if judged.replaced:
        sentences.append(
            f"{_listed(judged.replaced)}: it was deleted and created again by others since this queue recorded it, so "
            "it is neither configured nor deleted. Delete the new one to have the queue create its own."
        )
    sentences.append(
        f"To give what exists to this queue: {annotate_command(queue, TAKE_OVER_ANNOTATION, queue.boxes(redis).dead)}"
    )
    return Finding(Reason.BoxConflict, " ".join(sentences), False, BOXES_READY)


def _may_adopt(queue: DeadLetterQueue, judged: Ownership) -> bool:
    """A queue with a source never adopts, and only a dead box can be adopted."""
    return queue.shape == "Plain" and queue.spec.dead.name in judged.foreign


def annotate_command(queue: DeadLetterQueue, key: str, value: str) -> str:
    """The command that sets an annotation."""
    return f"kubectl -n {queue.namespace} annotate dlq/{queue.name} '{key}={value}'"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def boxes_to_delete(queue: DeadLetterQueue, judged: Ownership, ids: Mapping[str, str]) -> tuple[str, ...] | Finding:
    """The boxes that `deletionPolicy: Delete` deletes, or why a confirmation is needed first."""
    found = tuple(one.name for one in judged.records if one.found and one.name in ids)
    if found and queue.metadata.annotations.get(CONFIRM_DELETE_ANNOTATION) != "true":
        sentence = (
            f"{_listed(found)}: deletionPolicy is Delete, but it is not recorded that the operator created it. "
            f"To delete it with all its letters: {annotate_command(queue, CONFIRM_DELETE_ANNOTATION, 'true')}"
        )
        return Finding(Reason.DeletionBlocked, sentence, True, BOXES_READY)
    return tuple(one.name for one in judged.records)
