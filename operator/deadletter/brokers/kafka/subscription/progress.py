"""What of one source partition is taken and what of it is finished."""

from collections.abc import Collection

from deadletter.brokers.kafka.subscription.offset_metadata import NO_ATTEMPTS, MAX_METADATA_BYTES, Attempts, decode, encode, max_encoded_bytes


class SourceProgress:
    """Offsets are those taken, never last + 1: transaction markers leave gaps."""

    def __init__(self, offset: int, metadata: str = "") -> None:
        self.highest, self.unfinished = decode(offset, metadata)
        self.known = self.highest  # below it, what is not unfinished was settled by someone before us
        self.start = offset

    def take(self, offset: int) -> Attempts | None:
        """The message at this offset comes into our hands; None: it was finished before."""
        if offset <= self.known and offset not in self.unfinished:
            return None
        self.highest = max(self.highest, offset)
        return self.unfinished.setdefault(offset, NO_ATTEMPTS)

    def skip_to(self, end: int) -> None:
        """What lies between the last one taken and `end` can never be taken."""
        self.highest = max(self.highest, end - 1)

    def keep_in_flight(self, before: "SourceProgress") -> None:
        """After an unknown outcome: what is still in our hands stays there, with what we know of it."""
        for offset, state in before.unfinished.items():
            if offset in self.unfinished or offset > self.highest:
                self.unfinished[offset] = state
        self.unfinished = dict(sorted(self.unfinished.items()))
        self.highest = max(self.highest, before.highest)

    def record_attempt(self, offset: int, attempt: Attempts) -> None:
        """It failed once more."""
        if offset in self.unfinished:
            self.unfinished[offset] = attempt

    def attempt(self, offset: int) -> Attempts:
        """How often it failed so far."""
        return self.unfinished.get(offset, NO_ATTEMPTS)

    def is_finished(self, offset: int) -> bool:
        """Was it taken and settled?"""
        return offset <= self.highest and offset not in self.unfinished

    def finish(self, offsets: Collection[int]) -> None:
        """These are settled."""
        for offset in offsets:
            self.unfinished.pop(offset, None)

    def snapshot(self, without: Collection[int] = ()) -> tuple[int, str]:
        """Offset and metadata to commit when `without` are settled as well."""
        left = {offset: state for offset, state in self.unfinished.items() if offset not in without}
        offset = min(left) if left else self.highest + 1
        return offset, encode(offset, self.highest, left)

    def has_metadata_space(self, count: int) -> bool:
        """Would the broker take the metadata with so many more, taken one after the other?"""
        failed = len(self.unfinished) - list(self.unfinished.values()).count(NO_ATTEMPTS)
        span = self.highest - next(iter(self.unfinished), self.highest)
        if max_encoded_bytes(len(self.unfinished) + count, failed, span) <= MAX_METADATA_BYTES:
            return True
        return len(self.snapshot()[1]) + count * 8 // 3 + 4 <= MAX_METADATA_BYTES  # two bytes each, in base64
