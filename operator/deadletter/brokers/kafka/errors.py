"""A driver's error, in our words."""

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
        ours.Fenced, "another one took over",
    ),
    ((driver.MessageSizeTooLargeError, driver.RecordListTooLargeError), ours.TooLarge, "a message exceeds its limit"),
    ((driver.UnknownTopicOrPartitionError, driver.InvalidTopicError), ours.BoxMissing, "it does not exist"),
    (
        (driver.TopicAuthorizationFailedError, driver.GroupAuthorizationFailedError,
         driver.ClusterAuthorizationFailedError, driver.TransactionalIdAuthorizationFailed),
        ours.NotAuthorised, "the broker does not allow it; look at its ACLs",
    ),
    (
        (driver.AuthenticationFailedError, driver.SaslAuthenticationFailed, driver.AuthenticationMethodNotSupported,
         driver.UnsupportedSaslMechanismError, driver.IllegalSaslStateError),
        ours.AuthenticationFailed, "the broker refuses the credentials",
    ),
    (
        (driver.NotEnoughReplicasError, driver.NotEnoughReplicasAfterAppendError, driver.KafkaStorageError,
         driver.PolicyViolationError),
        ours.BoxRefused, "it takes no writes now",
    ),
    ((driver.IncompatibleBrokerVersion, driver.UnsupportedVersionError), ours.NotSupported, "the broker is too old"),
)  # fmt: skip
EXPECTED_ERRORS = (driver.KafkaError, driver.IllegalOperation, driver.ConsumerStoppedError, OSError, asyncio.TimeoutError,
            AssertionError, LedgerError)  # fmt: skip


def translate(error: BaseException, about: str) -> ours.BrokerError:
    """Our error for a driver's; its text names the box and the kind of error, nothing that was sent."""
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
    """Inside, only our errors come out."""
    try:
        yield
    except EXPECTED_ERRORS as error:
        raise translate(error, about) from error


def check_error_code(code: int, about: str) -> None:
    """Raise for an error code of an answer."""
    if code:
        raise translate(driver.for_code(code)(), about)
