"""Positions of a consumer group in memory."""

from deadletter.brokers.group_offsets import EARLIEST, LATEST, StartPosition
from deadletter.brokers.memory.server import Box, MemoryServer


def is_lost(server: MemoryServer, source: str, group: str) -> bool:
    """True if the source holds messages and the group has no position in it."""
    box, known = server.box(source), server.groups.get((source, group))
    return any(box.partitions) and (known is None or not known.next)


def positions(box: Box, start: StartPosition) -> list[int]:
    """Return where to begin in each partition."""
    return [_position(box, number, start) for number in range(len(box.ends))]


def _position(box: Box, number: int, start: StartPosition) -> int:
    if start == EARLIEST:
        return box.start(number)
    if start == LATEST:
        return box.ends[number]
    later = (offset for offset, message in box.partitions[number].items() if message.timestamp >= start)
    return next(later, box.ends[number])
