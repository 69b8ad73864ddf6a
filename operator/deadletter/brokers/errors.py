"""What can go wrong at a broker, in our words.

    BrokerError
    ├── BrokerUnreachable   time heals it
    │   └── AddressForbidden    settings may allow it
    ├── AuthenticationFailed time heals it (a Secret may be mended)
    ├── CertificateRefused  time heals it (a certificate may be renewed)
    ├── NotAuthorised       time heals it (an ACL may be mended)
    ├── BoxMissing          time heals it (the box may be made)
    ├── BoxRefused          time heals it (disk full, too few replicas, read-only)
    ├── GroupOffsetsLost    tried again until a human has chosen where the group goes on
    ├── BoxConflict         does not heal: what exists differs from what is asked
    ├── BoxAppeared         tried again: others created the box at the same moment
    ├── BoxRecreated        does not heal: a human decides
    ├── LedgerCorrupt       does not heal: a human decides
    ├── LedgerTooNew        time heals it (an upgrade knows the record)
    ├── Undecodable         does not heal: what lies in the box is broken
    ├── TooLarge            does not heal: this message exceeds the box's limit
    ├── Fenced              does not heal: another settler took over
    └── NotSupported        does not heal: this broker cannot do it

A driver's error is chained (`raise ... from error`), never passed up; texts carry no payload and no credential.
"""


class BrokerError(Exception):
    """An objection of a broker; `heals` says whether time alone may mend it."""

    is_transient = False


class BrokerUnreachable(BrokerError):
    """Nobody answers, or not in time."""

    heals = True


class AddressForbidden(BrokerUnreachable):
    """The address guard does not let us dial."""


class AuthenticationFailed(BrokerError):
    """The broker refuses our credentials."""

    heals = True


class CertificateRefused(BrokerError):
    """A certificate, the broker's or ours, is not accepted."""

    heals = True


class NotAuthorised(BrokerError):
    """The broker knows us and says no."""

    heals = True


class BoxMissing(BrokerError):
    """The topic or stream does not exist."""

    heals = True


class BoxRefused(BrokerError):
    """The box does not take writes now: out of memory, too few replicas, read-only."""

    heals = True


class BoxAppeared(BrokerError):
    """A box that was to be created exists already; the next look shows whose it is."""

    heals = True


class GroupOffsetsLost(BrokerError):
    """A consumer group that had started has no offset of its source any more."""

    heals = True


class BoxConflict(BrokerError):
    """What exists differs from what is asked and must not be changed."""


class BoxRecreated(BrokerError):
    """The box was deleted and made again; its ledger speaks of other letters."""


class LedgerCorrupt(BrokerError):
    """A record of the ledger cannot be read; never taken for an empty one."""


class LedgerTooNew(BrokerError):
    """A record of the ledger that must not be skipped was written by a later release."""

    heals = True


class Undecodable(BrokerError):
    """Nobody can read what lies there: a wrong checksum, an unknown codec, a header name that is no text."""


class TooLarge(BrokerError):
    """The message exceeds what the box takes."""


class Fenced(BrokerError):
    """Another settler of the same box partition took over; stop."""


class NotSupported(BrokerError):
    """This broker cannot do what is asked."""
