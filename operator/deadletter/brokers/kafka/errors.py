"""Translate the driver's errors into those of the broker contract."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka import errors as driver

from deadletter.brokers import errors as ours
from deadletter.core.ledger.records import LedgerError, UnknownRecord
from deadletter.net.tls_errors import certificate_problem

_TRANSLATIONS: tuple[tuple[tuple[type[BaseException], ...], type[ours.BrokerError], str], ...] = (
    (
        (driver.ProducerFenced, driver.InvalidProducerEpoch, driver.CommitFailedError, driver.IllegalGenerationError,
         driver.UnknownMemberIdError, driver.RebalanceInProgressError, driver.IllegalStateError),
        ours.Fenced, "another client took over",
    ),
    (
        (driver.MessageSizeTooLargeError, driver.RecordListTooLargeError),
        ours.TooLarge, "a message exceeds the size limit of the topic",
    ),
    (
        (driver.InvalidTimestampError,),
        ours.MessageRefused, "the time of a message exceeds the limits of the topic (message.timestamp.after.max.ms)",
    ),
    ((driver.UnknownTopicOrPartitionError, driver.InvalidTopicError), ours.BoxMissing, "the topic does not exist"),
    (
        (driver.TopicAuthorizationFailedError, driver.GroupAuthorizationFailedError,
         driver.ClusterAuthorizationFailedError, driver.TransactionalIdAuthorizationFailed),
        ours.NotAuthorised, "access denied; add an ACL",
    ),
    (
        (driver.AuthenticationFailedError, driver.SaslAuthenticationFailed, driver.AuthenticationMethodNotSupported,
         driver.UnsupportedSaslMechanismError, driver.IllegalSaslStateError),
        ours.AuthenticationFailed, "credentials rejected; check the Secret",
    ),
    (
        (driver.NotEnoughReplicasError, driver.NotEnoughReplicasAfterAppendError, driver.KafkaStorageError,
         driver.PolicyViolationError),
        ours.BoxRefused, "writes are not accepted now",
    ),
    (
        (driver.IncompatibleBrokerVersion, driver.UnsupportedVersionError),
        ours.NotSupported, "the broker does not support this request; upgrade it",
    ),
)  # fmt: skip
EXPECTED_ERRORS = (
    driver.KafkaError,
    driver.IllegalOperation,
    driver.ConsumerStoppedError,
    OSError,
    asyncio.TimeoutError,
    AssertionError,
    LedgerError,
)


def translate(error: BaseException, about: str) -> ours.BrokerError:
    """Return the contract's error for a driver's error.

    The text names the topic, group or id and the kind of error, and holds nothing of what was sent.
    """
    if isinstance(error, ours.BrokerError):
        return error
    if isinstance(error, UnknownRecord):
        return ours.LedgerTooNew(str(error))
    if isinstance(error, LedgerError):
        return ours.LedgerCorrupt(str(error))
    for kinds, kind, sentence in _TRANSLATIONS:
        if isinstance(error, kinds):
            return kind(f"{about}: {sentence}")
    if sentence := certificate_problem(error):
        return ours.CertificateRefused(f"{about}: {sentence}")
    return ours.BrokerUnreachable(f"{about}: no answer in time ({type(error).__name__})")


@contextmanager
def translated(about: str) -> Iterator[None]:
    """Raise the contract's errors instead of the driver's inside the block."""
    try:
        yield
    except EXPECTED_ERRORS as error:
        raise translate(error, about) from error


def check_error_code(code: int, about: str) -> None:
    """Raise the contract's error for the error code of a response."""
    if code:
        raise translate(driver.for_code(code)(), about)


def raise_driver_error(code: int) -> None:
    """Raise the driver's error for the error code of a response, to be handled or translated by the caller."""
    if code:
        raise driver.for_code(code)
