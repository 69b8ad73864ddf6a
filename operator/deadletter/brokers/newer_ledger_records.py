"""Log ledger records that are skipped because only a later release can read them."""

import structlog

log = structlog.stdlib.get_logger("ledger")
MAX_REMEMBERED = 1_000
MAX_KIND_CHARS = 40
_logged: set[tuple[str, str]] = set()


def log_skipped_record(ledger: str, key: bytes) -> None:
    """Log a skipped record once for each ledger and kind of record."""
    kind = key.split(b"/", 1)[0].decode("utf-8", "replace")[:MAX_KIND_CHARS]
    if (ledger, kind) in _logged:
        return
    if len(_logged) >= MAX_REMEMBERED:
        _logged.clear()
    _logged.add((ledger, kind))
    log.warning("ledger record skipped", ledger=ledger, kind=kind, remedy="upgrade to the release that wrote it")
