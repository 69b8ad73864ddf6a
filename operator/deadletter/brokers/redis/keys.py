"""Keys beside a box: they carry its hash tag, so that a box and what belongs to it share a slot."""


def sibling_key(box: str, suffix: str) -> str:
    """`<box>.<suffix>`, in the slot of the box: a name without a hash tag becomes one."""
    opened = box.find("{")
    tagged = opened >= 0 and box.find("}", opened) > opened + 1
    return f"{box}.{suffix}" if tagged else f"{{{box}}}.{suffix}"


def marks(box: str) -> str:
    """Sorted set of letters already published here, by the time they are forgotten."""
    return sibling_key(box, "marks")


def published(box: str, group: str = "") -> str:
    """Sorted set of claims whose letter lies in some box already and that are still to be settled, by the time they
    are forgotten: of a source per group, of a retry box.
    """
    return sibling_key(box, f"{group}.published" if group else "published")


def fence(box: str) -> str:
    """Counter of movers: only the newest may write."""
    return sibling_key(box, "fence")


def due(retry: str) -> str:
    """Sorted set of waiting letters by due time, or by the end of the lease of who holds them."""
    return sibling_key(retry, "due")


def holders(retry: str) -> str:
    """Hash of waiting letters in somebody's hands: who."""
    return sibling_key(retry, "holders")


def identity(box: str) -> str:
    """The id of a box that the operator created; set in the same script as the box."""
    return sibling_key(box, "id")


def lost(retry: str) -> str:
    """Number of waiting letters that were gone when they were due."""
    return sibling_key(retry, "lost")


def notes(source: str, group: str) -> str:
    """Hash of messages that failed inline: attempts and first failure."""
    return sibling_key(source, f"{group}.notes")


def selected(ledger: str, uid: str) -> str:
    """List of what a DryRun selected."""
    return f"{ledger}:selected:{uid}"


def produced(ledger: str, uid: str) -> str:
    """List of where a Replay published."""
    return f"{ledger}:produced:{uid}"
