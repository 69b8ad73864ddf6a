"""Compile CEL expressions over a letter and evaluate them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from cel_expr_python import cel

from deadletter.core import times
from deadletter.core.fingerprint import fingerprint
from deadletter.core.letters import SEQUENCE_BITS, SEQUENCE_MASK, Letter, failure_time

MAX_EXPRESSION_CHARS = 4_096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = times.MIN_MS + 1  # CEL reads the very first instant as the infinite past
_POSITION = re.compile(r"<input>:([0-9]+):([0-9]+): ([^\n]*)")
_DECODE = msgspec.json.Decoder().decode


class PredicateError(ValueError):
    """The text is not a valid CEL predicate; `position` is `line:column`."""

    def __init__(self, problem: str, position: str) -> None:
        super().__init__(f"{position}: {problem}")
        self.position = position


def _error(letter: Letter, _: int) -> dict[str, object]:
    failure = letter.envelope.failure
    return {
        "type": failure.type,
        "message": failure.message,
        "category": failure.category.value,
        "status": failure.status,
        "stack": failure.stack,
    }


def _origin(letter: Letter, _: int) -> dict[str, object]:
    origin = letter.envelope.origin
    return {"topic": origin.topic, "partition": origin.partition, "offset": _int64(origin.offset)}


def _int64(offset: int | None) -> int | None:
    return offset >> SEQUENCE_BITS if offset is not None and offset > SEQUENCE_MASK else offset


def _text(raw: bytes | None) -> str:
    return raw.decode("utf-8", "replace") if raw else ""


def _headers(letter: Letter, _: int) -> dict[str, str]:
    return {name: _text(value) for name, value in letter.message.headers}


def _moment(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(max(ms, _FIRST), times.MAX_MS))


def _payload(letter: Letter, _: int) -> object:
    value = letter.message.value
    return None if value is None else _DECODE(value)


_T = cel.Type
_VARIABLES: dict[str, tuple[Any, Callable[[Letter, int], object]]] = {
    "id": (_T.STRING, lambda letter, _: letter.place.id),
    "topic": (_T.STRING, lambda letter, _: letter.place.box),
    "partition": (_T.INT, lambda letter, _: letter.place.partition),
    "offset": (_T.INT, lambda letter, _: _int64(letter.place.offset)),
    "timestamp": (_T.TIMESTAMP, lambda letter, _: _moment(letter.message.timestamp)),
    "key": (_T.STRING, lambda letter, _: _text(letter.message.key)),
    "headers": (_T.Map(_T.STRING, _T.STRING), _headers),
    "error": (_T.Map(_T.STRING, _T.DYN), _error),
    "attempts": (_T.INT, lambda letter, _: letter.envelope.attempts),
    "replays": (_T.INT, lambda letter, _: letter.envelope.replays),
    "age": (_T.DURATION, lambda letter, now: timedelta(milliseconds=max(now - failure_time(letter), 0))),
    "failedAt": (_T.TIMESTAMP, lambda letter, _: _moment(failure_time(letter))),
    "origin": (_T.Map(_T.STRING, _T.DYN), _origin),
    "dialect": (_T.STRING, lambda letter, _: letter.envelope.dialect),
    "fingerprint": (_T.STRING, lambda letter, _: fingerprint(letter.envelope.failure)),
    "payload": (_T.DYN, _payload),
    "size": (_T.INT, lambda letter, _: letter.message.size),
}
_ENV = cel.NewEnv(variables={name: kind for name, (kind, _) in _VARIABLES.items()})
_NAMES = re.compile(r"\b(" + "|".join(_VARIABLES) + r")\b")


class Predicate:
    """A compiled CEL predicate over one letter; only the variables that it names are computed."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_EXPRESSION_CHARS:
            raise PredicateError(f"the expression must not be longer than {MAX_EXPRESSION_CHARS} characters", "1:1")
        try:
            self._expression = _ENV.compile(source)
        except RuntimeError as error:
            raise _error_from_compiler(str(error)) from None
        kind = self._expression.return_type()
        if kind != _T.BOOL:
            raise PredicateError(f"the expression must be bool, not {kind.name()}", "1:1")
        self.source = source
        used = set(_NAMES.findall(source))
        self._readers = tuple((name, read) for name, (_, read) in _VARIABLES.items() if name in used)

    @classmethod
    def cached(cls, source: str) -> "Predicate":
        """Return the predicate of this text from the cache of compiled ones."""
        return _compiled(source)

    def variables(self, letter: Letter, now: int) -> dict[str, object]:
        """Return the values of the variables that the expression names."""
        return {name: read(letter, now) for name, read in self._readers}

    def matches(self, letter: Letter, now: int) -> bool | None:
        """True if the letter matches; None if the expression cannot be evaluated on it, which counts as no match."""
        try:
            result = self._expression.eval(data=self.variables(letter, now)).plain_value()
        except (RuntimeError, ValueError, OverflowError):
            return None
        # cel_expr_python returns an error as a value whose plain form is a truthy string.
        return result if isinstance(result, bool) else None


@lru_cache(maxsize=1_024)
def _compiled(source: str) -> Predicate:
    return Predicate(source)


def _error_from_compiler(text: str) -> PredicateError:
    found = _POSITION.search(text)
    if not found:
        return PredicateError("the expression cannot be compiled", "1:1")
    return PredicateError(found[3], f"{found[1]}:{found[2]}")
