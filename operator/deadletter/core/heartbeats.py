"""Which workers still speak. Their clocks may be off, so what counts is when a word changed while we listened."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

LASTS = 90_000  # ms; three times as long as a worker waits before it speaks again


class Word(Protocol):
    """What a worker said: its name, and when by its own clock."""

    @property
    def pod(self) -> str:
        """Who."""
        ...

    @property
    def at(self) -> int:
        """When, in milliseconds."""
        ...


Spoken = TypeVar("Spoken", bound=Word)


class Hearing:
    """What was heard of the workers of one queue, and when by our clock."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}  # pod: when it spoke by its clock, when by ours

    def living(self, words: Sequence[Spoken], now: int) -> tuple[Spoken, ...]:
        """The words of those who still speak."""
        self._heard = {word.pod: (word.at, self._when(word, now)) for word in words}
        return tuple(word for word in words if abs(now - self._heard[word.pod][1]) <= LASTS)

    def _when(self, word: Word, now: int) -> int:
        # Of a word that was there before we listened nobody but the worker knows how old it is.
        at, heard = self._heard.get(word.pod, (None, word.at))
        return now if at is not None and at != word.at else heard
