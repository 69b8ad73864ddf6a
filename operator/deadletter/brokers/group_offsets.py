"""A consumer group that lost its offsets: how it is reported, and where it may go on."""

from typing import Literal

from deadletter.brokers.errors import GroupOffsetsLost

RESUME_FROM = "deadletter.dev/resume-from"
EARLIEST: Literal["Earliest"] = "Earliest"
LATEST: Literal["Latest"] = "Latest"
StartPosition = Literal["Earliest", "Latest"] | int  # a number is a time in milliseconds since the epoch


def offsets_lost(source: str, group: str) -> GroupOffsetsLost:
    """Return the error that stops a courier and names the remedy."""
    return GroupOffsetsLost(
        f"Consumer group {group} has lost its position in {source}: its offsets expired, or the group was deleted. "
        "Nothing is delivered until you decide where it goes on: annotate the DeadLetterQueue with "
        f"{RESUME_FROM}=Earliest (all that the source holds), Latest (only what comes from now on) "
        "or a time such as 2026-11-16T00:00:00Z."
    )
