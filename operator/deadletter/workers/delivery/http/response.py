"""What a service answered, bounded in every part."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_BODY_BYTES = 64 << 10
MAX_HEAD_BYTES = 64 << 10
MAX_INTERIM_RESPONSES = 16


@dataclass(slots=True)
class Response:
    """Status, headers by their lower-case names (the last of a name stands) and the body, cut at 64 KiB."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_cut: bool = False
