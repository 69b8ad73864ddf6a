"""When the letters just read were written, so that a settler need not read its mark again."""

from collections.abc import Sequence

from deadletter.brokers.kafka.fetch import MESSAGES_PER_BATCH
from deadletter.brokers.types import StoredMessage

KEPT = 10_000 // MESSAGES_PER_BATCH  # batches a partition: as many letters as a settler scans between two commits


class TimestampCache:
    """The timestamps of the last few batches of each box partition."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, int], list[dict[int, int]]] = {}

    def add(self, batch: Sequence[StoredMessage]) -> None:
        """Remember a batch; all of one partition."""
        place = batch[0].place
        kept = self._batches.setdefault((place.box, place.partition), [])
        kept.append({one.place.offset: one.message.timestamp for one in batch})
        del kept[:-KEPT]

    def timestamp(self, box: str, partition: int, offset: int) -> int | None:
        """When the letter at this offset was written, if it was seen lately."""
        for batch in self._batches.get((box, partition), ()):
            if offset in batch:
                return batch[offset]
        return None
