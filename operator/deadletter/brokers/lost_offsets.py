"""Consumer groups that lost their offsets: the error that reports it, and the positions at which they may resume."""

from typing import Literal

from deadletter.brokers.errors import GroupOffsetsLost

RESUME_FROM_ANNOTATION = "deadletter.dev/resume-from"
EARLIEST: Literal["Earliest"] = "Earliest"
LATEST: Literal["Latest"] = "Latest"
StartPosition = Literal["Earliest", "Latest"] | int  # a number is a time in milliseconds since the epoch


def offsets_lost_error(source: str, group: str) -> GroupOffsetsLost:
    """Return the error that stops a courier and names the remedy."""
    return GroupOffsetsLost(
        f"Consumer group {group} has lost its position in {source}: its offsets expired, or the group was deleted. "
        "Nothing is delivered until you decide where it resumes: annotate the DeadLetterQueue with "
        f"{RESUME_FROM_ANNOTATION}=Earliest (all messages of the source), Latest (only new messages) "
        "or a time such as 2026-11-16T00:00:00Z."
    )
