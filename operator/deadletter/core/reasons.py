"""All reasons of conditions, Events, verdicts and skipped letters, each with its meaning."""

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Cause of a condition, Event, verdict or skip; `meaning` is printed in docs/reference/reasons.md."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Create a member that is a string and has a meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # Ready
    Reconciled = "Reconciled", "The object is in the desired state."
    Adopted = "Adopted", "The queue watches an existing dead box and never changes it."
    WaitingForCourier = "WaitingForCourier", "No pod of the courier is available yet."
    BrokerUnreachable = "BrokerUnreachable", "The broker does not respond at its addresses."
    AddressForbidden = "AddressForbidden", "The operator must not connect to the broker's address."
    AuthenticationFailed = "AuthenticationFailed", "The broker rejected the credentials."
    CertificateRefused = "CertificateRefused", "A certificate has expired, is not valid yet or is not trusted."
    NotAuthorised = "NotAuthorised", "The broker authenticated the user and denied the operation."
    BoxMissing = "BoxMissing", "A required topic or stream does not exist."
    BoxConflict = (
        "BoxConflict",
        "Another queue owns the dead box, the box was created by others, or its configuration differs from the spec.",
    )
    BoxRefused = "BoxRefused", "The box rejects writes at the moment."
    BoxRecreated = (
        "BoxRecreated",
        "The box was deleted and created again, so its ledger no longer matches; a person must decide what to do.",
    )
    BoxesTakenOver = "BoxesTakenOver", "An annotation gave existing boxes to the queue."
    BoxesFound = "BoxesFound", "Every box of the queue exists and matches the spec."
    LedgerCorrupt = "LedgerCorrupt", "A ledger record cannot be read; nothing is settled until it is repaired."
    LedgerTooNew = (
        "LedgerTooNew",
        "A later release wrote a ledger record that must not be ignored; upgrade to that release.",
    )
    PartitionShrinkRefused = (
        "PartitionShrinkRefused",
        "The spec has fewer partitions than the box; partitions are never removed.",
    )
    Suspended = "Suspended", "The user suspended the object."
    NotSupportedYet = "NotSupportedYet", "A field is set that is not implemented yet."
    NotSupported = "NotSupported", "The broker does not support the requested operation or configuration."
    InvalidSpec = "InvalidSpec", "The spec is invalid; the message names the field."
    Pending = "Pending", "The object has not been checked yet."
    CourierAvailable = "CourierAvailable", "The pods of the courier are available."
    GroupOffsetsLost = (
        "GroupOffsetsLost",
        "The started consumer group lost its offsets; it waits for the annotation deadletter.dev/resume-from.",
    )
    GroupResumed = (
        "GroupResumed",
        "A consumer group that had lost its offsets continues at the position in deadletter.dev/resume-from.",
    )
    ResumeIgnored = "ResumeIgnored", "deadletter.dev/resume-from was removed without effect; the message tells why."
    NoCourierNeeded = "NoCourierNeeded", "The queue has no delivery, so it has no courier."
    DeletionBlocked = (
        "DeletionBlocked",
        "The boxes of a deleted queue cannot be deleted, because a confirmation or the broker is missing.",
    )
    ApplyRefused = "ApplyRefused", "The API server rejected a child object."
    # ReferencesResolved
    AllFound = "AllFound", "All objects that the spec references exist."
    RetryPolicyNotFound = "RetryPolicyNotFound", "The RetryPolicy does not exist."
    BrokerConnectionNotFound = "BrokerConnectionNotFound", "The BrokerConnection does not exist."
    QueueNotFound = "QueueNotFound", "The DeadLetterQueue does not exist."
    ServiceNotFound = "ServiceNotFound", "The Service does not exist."
    ReplayNotFound = "ReplayNotFound", "The Replay that previewRef names does not exist."
    SelfReference = "SelfReference", "The queue references itself."
    ChainedReference = "ChainedReference", "The target of a route has a dead-letter queue of its own."
    CyclicReference = "CyclicReference", "The routes of these queues form a cycle."
    BrokerMismatch = "BrokerMismatch", "Both queues must be on the same broker."
    SecretNotFound = "SecretNotFound", "The Secret does not exist."
    SecretKeyMissing = "SecretKeyMissing", "The Secret lacks a required key."
    SecretNotReadable = "SecretNotReadable", "The operator is not allowed to read the Secret."
    # Degraded
    AsExpected = "AsExpected", "The queue works normally."
    DepthHigh = "DepthHigh", "The number of open letters exceeds alerts.depth."
    AgeHigh = "AgeHigh", "The oldest open letter is older than alerts.age."
    RetentionLossSoon = "RetentionLossSoon", "Retention will soon delete an open letter."
    CircuitOpen = "CircuitOpen", "Deliveries fail; the courier is paused until a probe succeeds."
    CapacityReached = "CapacityReached", "The dead box holds capacity.maxLetters open letters; the courier is paused."
    ErrorBudgetSpent = "ErrorBudgetSpent", "The error budget of the period is spent; the courier is paused."
    TargetForbidden = "TargetForbidden", "The courier must not connect to the delivery address."
    TargetUnresolvable = "TargetUnresolvable", "The delivery host has no address, or the TLS handshake with it fails."
    ParkedLettersLost = (
        "ParkedLettersLost",
        "Letters were deleted from the retry box before they were delivered; shown for a day after the last loss.",
    )
    SourceMessagesDeleted = (
        "SourceMessagesDeleted",
        "Retention deleted messages of the source before they were read; shown for a day, or until the pod ends.",
    )
    LedgerUnderReplicated = (
        "LedgerUnderReplicated",
        "The ledger has fewer replicas than its dead box, and the broker does not let the operator add them.",
    )
    OriginUnknown = (
        "OriginUnknown",
        "Letters do not name their origin: they cannot be sent back, or those that fail again are not recognised.",
    )
    # Replay
    AllReplayed = "AllReplayed", "Every matched letter was sent."
    AllArchived = "AllArchived", "Every matched letter was archived."
    AllDiscarded = "AllDiscarded", "Every matched letter was discarded."
    PartlyReplayed = "PartlyReplayed", "Some matched letters were sent, others were skipped; the message tells why."
    PartlyArchived = "PartlyArchived", "Some matched letters were archived, others were skipped; the message tells why."
    PartlyDiscarded = (
        "PartlyDiscarded",
        "Some matched letters were discarded, others were skipped; the message tells why.",
    )
    DryRunFinished = "DryRunFinished", "The preview is complete; nothing was published."
    NothingMatched = (
        "NothingMatched",
        "No letter was processed: none matched the selection, or all that matched were skipped.",
    )
    Started = "Started", "The Replay has started."
    Queued = "Queued", "Another Replay of the same queue is running."
    Freezing = "Freezing", "The Replay freezes its window."
    Running = "Running", "Letters are being replayed."
    Waiting = "Waiting", "The Replay waits after a canary step for letters that fail again."
    Verifying = "Verifying", "All letters are sent; the Replay watches for letters that fail again."
    DeliveryFailed = "DeliveryFailed", "A letter could not be published or delivered."
    FailureShareExceeded = "FailureShareExceeded", "The share of letters that failed again exceeds maxFailureShare."
    DeadlineExceeded = "DeadlineExceeded", "The Replay ran longer than activeDeadline."
    NoProgress = "NoProgress", "Pods of the Replay ended repeatedly without progress."
    WindowExpired = "WindowExpired", "Retention deleted the frozen window."
    QueueNotReady = "QueueNotReady", "The queue is not ready."
    RedriveDisabled = "RedriveDisabled", "The queue has redrive strategy Disabled; an Apply is rejected."
    Fenced = "Fenced", "Another writer of the same box took over."
    # Verdicts
    AttemptsExhausted = "AttemptsExhausted", "The message failed as often as maxAttempts allows."
    Expired = "Expired", "The first failure is longer ago than maxAge, or retention deleted the letter."
    Refused = "Refused", "Failures of this category are not retried."
    RuleMatched = "RuleMatched", "A rule of the policy decided."
    ServiceAsked = "ServiceAsked", "The service requested it with the Dlq-Action header."
    RetryLater = "RetryLater", "The message waits in the retry box for its next attempt."
    TooLarge = "TooLarge", "The message exceeds the maximum size of the box."
    MessageRefused = "MessageRefused", "The box refuses this message, for example because its time is too far ahead."
    Undecodable = (
        "Undecodable",
        "The content of a box cannot be decoded; such a source message is buried with its raw bytes.",
    )
    # Skips
    AlreadySettled = "AlreadySettled", "The letter was settled before."
    LoopCap = "LoopCap", "The letter was already replayed maxReplays times."
    NoOrigin = "NoOrigin", "The letter does not name its origin."
    SelectorError = "SelectorError", "The selection could not be evaluated on the letter."
    TransformError = "TransformError", "The transform could not be applied to the letter."
