"""Strip the headers of an envelope from a letter that is replayed.

Headers with origins, errors and counters are removed; otherwise a client library appends to an old origin or counts old
attempts. Trace context, CloudEvents and user headers stay.
"""

from deadletter.core.dialects.base import HeaderNames
from deadletter.core.dialects.registry import BY_NAME, DIALECTS
from deadletter.core.letters import Headers

# Counters of systems that have no dialect; if they stayed, those systems would dead-letter the message at once.
COUNTERS = (
    "x-retry-*",
    "x-death",
    "x-first-death-*",
    "x-last-death-*",
    "deserialization-failure-dlq",
    "RECONSUMETIMES",
)


def _names_and_prefixes(strips: HeaderNames) -> tuple[frozenset[str], tuple[str, ...]]:
    names = frozenset(name for name in strips if not name.endswith("*"))
    return names, tuple(sorted({name[:-1] for name in strips if name.endswith("*")}))


_ALWAYS_STRIPPED = (*COUNTERS, *(name for dialect in DIALECTS if dialect.is_exclusive for name in dialect.strip_names))
_STRIPPED_BY_DIALECT = {
    name: _names_and_prefixes((*_ALWAYS_STRIPPED, *dialect.strip_names)) for name, dialect in BY_NAME.items()
}


def strip_headers(headers: Headers, dialect: str) -> Headers:
    """Return the headers that stay in a replayed letter of this dialect."""
    names, prefixes = _STRIPPED_BY_DIALECT.get(dialect, _STRIPPED_BY_DIALECT["none"])
    return tuple([header for header in headers if header[0] not in names and not header[0].startswith(prefixes)])
