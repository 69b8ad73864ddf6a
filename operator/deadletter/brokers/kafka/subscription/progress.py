"""Track which messages of one source partition were taken, and which of them are finished."""

from collections.abc import Collection

from deadletter.brokers.kafka.subscription.offset_metadata import (
    MAX_METADATA_BYTES,
    NO_ATTEMPTS,
    Attempts,
    decode,
    encode,
    max_encoded_bytes,
)


class SourceProgress:
    """The taken and the unfinished offsets of a source partition.

    The highest offset is that of a message, never last + 1, because transaction markers leave gaps.
    """

    def __init__(self, offset: int, metadata: str = "") -> None:
        self.highest, self.unfinished = decode(offset, metadata)
        self.known = self.highest  # up to it, what is not unfinished was settled by an earlier owner of the partition
        self.start = offset

    def take(self, offset: int) -> Attempts | None:
        """Mark a message as taken and return its attempts; None if it was finished before."""
        if offset <= self.known and offset not in self.unfinished:
            return None
        self.highest = max(self.highest, offset)
        return self.unfinished.setdefault(offset, NO_ATTEMPTS)

    def skip_to(self, end: int) -> None:
        """Skip the offsets before `end` that can never be taken."""
        self.highest = max(self.highest, end - 1)

    def keep_in_flight(self, before: "SourceProgress") -> None:
        """Take over the messages in flight and their attempts from the progress before a commit of unknown outcome."""
        for offset, attempts in before.unfinished.items():
            if offset in self.unfinished or offset > self.highest:
                self.unfinished[offset] = attempts
        self.unfinished = dict(sorted(self.unfinished.items()))
        self.highest = max(self.highest, before.highest)

    def record_attempt(self, offset: int, attempts: Attempts) -> None:
        """Record a failed attempt."""
        if offset in self.unfinished:
            self.unfinished[offset] = attempts

    def is_finished(self, offset: int) -> bool:
        """True if the message was taken and settled."""
        return offset <= self.highest and offset not in self.unfinished

    def finish(self, offsets: Collection[int]) -> None:
        """Mark messages as settled in memory; the next commit moves the group's offset past them."""
        for offset in offsets:
            self.unfinished.pop(offset, None)

    def snapshot(self, without: Collection[int] = ()) -> tuple[int, str]:
        """Return the offset and metadata to commit once the messages in `without` are settled as well."""
        left = {offset: attempts for offset, attempts in self.unfinished.items() if offset not in without}
        offset = min(left) if left else self.highest + 1
        return offset, encode(offset, self.highest, left)

    def has_metadata_space(self, count: int) -> bool:
        """True if the broker would accept the metadata with so many more consecutive messages taken."""
        failed = len(self.unfinished) - list(self.unfinished.values()).count(NO_ATTEMPTS)
        span = self.highest - next(iter(self.unfinished), self.highest)
        if max_encoded_bytes(len(self.unfinished) + count, failed, span) <= MAX_METADATA_BYTES:
            return True
        return len(self.snapshot()[1]) + count * 8 // 3 + 4 <= MAX_METADATA_BYTES  # two bytes each, in base64
