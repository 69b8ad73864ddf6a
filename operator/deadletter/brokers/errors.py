"""Errors of the broker contract.

    BrokerError
    ├── BrokerUnreachable    transient
    │   └── AddressForbidden     transient: the settings may allow the address later
    ├── AuthenticationFailed transient: the Secret may be corrected
    ├── CertificateRefused   transient: the certificate may be renewed
    ├── NotAuthorised        transient: the ACL may be extended
    ├── BoxMissing           transient: the box may be created
    ├── BoxRefused           transient: disk full, too few replicas, read-only
    ├── BoxAppeared          transient: another client created the box at the same moment
    ├── GroupOffsetsLost     transient: retried until a user chooses where the group resumes
    ├── LedgerTooNew         transient: a later release can read the record
    ├── BoxConflict          permanent: the existing box differs from the requested one
    ├── BoxRecreated         permanent: a user must decide
    ├── LedgerCorrupt        permanent: a user must decide
    ├── Undecodable          permanent: the stored bytes are damaged
    ├── MessageRefused       permanent: the box does not take this message, and takes others
    │   └── TooLarge             permanent: the message exceeds the limit of the box
    ├── Fenced               permanent: another writer has taken over
    └── NotSupported         permanent: this broker lacks the feature

Driver errors are chained (`raise ... from error`) and never passed on. Texts contain no payload and no credential.
"""


class BrokerError(Exception):
    """An error of a broker. `is_transient` is True if a retry may succeed without a change of the request.

    `is_connection_problem` is True if a retry may succeed on another connection: the server does not answer, or it is
    not the primary any more. All other errors need a change of settings, data or capacity.
    """

    is_transient = False
    is_connection_problem = False


class BrokerUnreachable(BrokerError):
    """The broker does not answer, or not in time."""

    is_transient = True
    is_connection_problem = True


class AddressForbidden(BrokerUnreachable):
    """The address of the broker must not be dialled."""

    is_connection_problem = False


class AuthenticationFailed(BrokerError):
    """The broker refuses our credentials."""

    is_transient = True


class CertificateRefused(BrokerError):
    """A certificate, the broker's or ours, is not accepted."""

    is_transient = True


class NotAuthorised(BrokerError):
    """The broker accepts our credentials, but its ACL does not allow the request."""

    is_transient = True


class BoxMissing(BrokerError):
    """The topic or stream does not exist."""

    is_transient = True


class BoxRefused(BrokerError):
    """The box does not accept writes at present: out of memory, too few replicas, read-only."""

    is_transient = True


class BoxAppeared(BrokerError):
    """A box that was to be created exists already; the next reconcile finds out who owns it."""

    is_transient = True


class GroupOffsetsLost(BrokerError):
    """A consumer group that had started has no offset of its source any more."""

    is_transient = True


class BoxConflict(BrokerError):
    """The existing box differs from the requested one and must not be changed."""


class BoxRecreated(BrokerError):
    """The box was deleted and created again; its ledger refers to letters of the old box."""


class LedgerCorrupt(BrokerError):
    """A ledger record cannot be read. It is never treated as missing."""


class LedgerTooNew(BrokerError):
    """A ledger record that must not be skipped was written by a later release."""

    is_transient = True


class Undecodable(BrokerError):
    """A message cannot be decoded: wrong checksum, unknown codec, or a header name that is not text."""


class MessageRefused(BrokerError):
    """The box does not take this message, such as one with a time too far ahead; it takes others."""


class TooLarge(MessageRefused):
    """The message exceeds the size limit of the box."""


class Fenced(BrokerError):
    """Another writer of the same box partition has taken over; stop."""


class NotSupported(BrokerError):
    """This broker does not support the request."""
