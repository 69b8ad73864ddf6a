"""Names of the Redis keys that belong to a box. They carry its hash tag, so that they share its slot."""


def sibling_key(box: str, suffix: str) -> str:
    """Return `<box>.<suffix>` in the slot of the box; a name without a hash tag becomes the tag."""
    opening = box.find("{")
    is_tagged = opening >= 0 and box.find("}", opening) > opening + 1
    return f"{box}.{suffix}" if is_tagged else f"{{{box}}}.{suffix}"


def marks(box: str) -> str:
    """Sorted set of letters that were published here, by the time at which their marks expire."""
    return sibling_key(box, "marks")


def published(box: str, group: str = "") -> str:
    """Sorted set of claims whose letter is published but that are not settled yet, by the time they expire.

    A source has one set per consumer group, a retry box has one.
    """
    return sibling_key(box, f"{group}.published" if group else "published")


def fence(box: str) -> str:
    """Random token of the newest partition writer; only that one may write."""
    return sibling_key(box, "fence")


def due(retry: str) -> str:
    """Sorted set of parked letters by due time, or by the end of the lease of their holder."""
    return sibling_key(retry, "due")


def holders(retry: str) -> str:
    """Hash from the id of a claimed parked letter to the consumer that holds it."""
    return sibling_key(retry, "holders")


def identity(box: str) -> str:
    """Id of a box that the operator created; the script that creates the box sets it."""
    return sibling_key(box, "id")


def lost(retry: str) -> str:
    """Number of parked letters that were missing when they were due."""
    return sibling_key(retry, "lost")


def notes(source: str, group: str) -> str:
    """Hash from the id of a message that failed inline to its attempts and first failure."""
    return sibling_key(source, f"{group}.notes")


def selected(ledger: str, uid: str) -> str:
    """List of what a DryRun selected."""
    return f"{ledger}:selected:{uid}"


def produced(ledger: str, uid: str) -> str:
    """List of the positions at which a Replay has published."""
    return f"{ledger}:produced:{uid}"
