"""Find out whether a consumer group in memory has lost its position, and where it starts."""

from deadletter.brokers.lost_offsets import EARLIEST, LATEST, StartPosition
from deadletter.brokers.memory.server import MemoryBox, MemoryServer


def is_lost(server: MemoryServer, source: str, group: str) -> bool:
    """True if the source holds messages and the group has no position in it."""
    box, known = server.get_box(source), server.groups.get((source, group))
    return any(box.partitions) and (known is None or not known.next_offsets)


def start_offsets(box: MemoryBox, start: StartPosition) -> list[int]:
    """Return the offset at which to start in each partition."""
    return [_start_offset(box, number, start) for number in range(len(box.end_offsets))]


def _start_offset(box: MemoryBox, number: int, start: StartPosition) -> int:
    if start == EARLIEST:
        return box.first_offset(number)
    if start == LATEST:
        return box.end_offsets[number]
    later = (offset for offset, message in box.partitions[number].items() if message.timestamp >= start)
    return next(later, box.end_offsets[number])
