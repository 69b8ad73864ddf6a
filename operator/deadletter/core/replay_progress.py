"""Progress of a Replay in one partition of the dead box, as stored in the ledger."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from deadletter.core.reasons import Reason


class SettledAs(StrEnum):
    """Why a letter is settled."""

    Delivered = "delivered"
    Buried = "buried"
    Replayed = "replayed"
    Archived = "archived"
    Discarded = "discarded"
    Superseded = "superseded"


class Skip(StrEnum):
    """Why a matched letter was not replayed."""

    AlreadySettled = "AlreadySettled"
    LoopCap = "LoopCap"
    NoOrigin = "NoOrigin"
    SelectorError = "SelectorError"
    TransformError = "TransformError"
    TooLarge = "TooLarge"
    Expired = "Expired"


# Of each action: the reason if all matched letters were processed, and if only some were.
FINISH_REASONS = {
    "Republish": (Reason.AllReplayed, Reason.PartlyReplayed),
    "Archive": (Reason.AllArchived, Reason.PartlyArchived),
    "Discard": (Reason.AllDiscarded, Reason.PartlyDiscarded),
}


def finish_reason(action: str, matched: int, processed: int) -> Reason:
    """Return the reason of an Apply that ended well; `matched` letters include those that were skipped."""
    if not processed:
        return Reason.NothingMatched
    everything, some = FINISH_REASONS[action]
    return everything if processed >= matched else some


@dataclass(slots=True, frozen=True)
class Span:
    """The frozen window of one box partition: offsets `start` to `end`, `end` excluded."""

    partition: int
    start: int
    end: int


@dataclass(slots=True, frozen=True)
class PartitionProgress:
    """Exact counts of what a Replay did in one partition so far; it continues at offset `next`."""

    span: Span
    now: int  # the time that the selection is evaluated at, ms
    next: int
    scanned: int = 0
    matched: int = 0
    replayed: int = 0
    archived: int = 0
    discarded: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    groups: dict[str, int] = field(default_factory=dict)  # fingerprint -> matched letters, at most 100 and `other`
    targets: dict[str, int] = field(default_factory=dict)  # box -> letters, at most 100 and `other`
    samples: tuple[str, ...] = ()  # ids, at most 10
    failed_again: int = 0
    phase: str = "Running"  # Freezing, Running, Waiting (canary), Verifying, Finished, Failed
    reason: str = ""  # a Reason if finished or failed
    message: str = ""  # a sentence if failed
    updated_at: int = 0

    @property
    def processed(self) -> int:
        """Number of letters that were sent, archived or discarded."""
        return self.replayed + self.archived + self.discarded

    def evolve(self, **changes: object) -> "PartitionProgress":
        """Return a copy with these values changed."""
        return replace(self, **changes)  # type: ignore[arg-type]
