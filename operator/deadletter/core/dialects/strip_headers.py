"""Replay hygiene: which headers a letter leaves behind when it goes back.

Foreign origin, error and counter headers go, else a library appends to an old origin or counts old attempts. Trace
context, CloudEvents and user headers stay.
"""

from deadletter.core.dialects.base import HeaderNames
from deadletter.core.dialects.registry import BY_NAME, DIALECTS
from deadletter.core.letters import Headers

# Counters of systems we only meet in passing; kept, they would dead-letter the message at once.
COUNTERS = (
    "x-retry-*",
    "x-death",
    "x-first-death-*",
    "x-last-death-*",
    "deserialization-failure-dlq",
    "RECONSUMETIMES",
)


def _split(strips: HeaderNames) -> tuple[frozenset[str], tuple[str, ...]]:
    names = frozenset(name for name in strips if not name.endswith("*"))
    return names, tuple(sorted({name[:-1] for name in strips if name.endswith("*")}))


_ALWAYS = (*COUNTERS, *(name for dialect in DIALECTS if dialect.is_exclusive for name in dialect.strip_names))
_RULES = {name: _split((*_ALWAYS, *dialect.strip_names)) for name, dialect in BY_NAME.items()}


def strip_headers(headers: Headers, dialect: str) -> Headers:
    """The headers that go back with a letter of this dialect."""
    names, prefixes = _RULES.get(dialect, _RULES["none"])
    return tuple([header for header in headers if header[0] not in names and not header[0].startswith(prefixes)])
