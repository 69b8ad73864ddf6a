"""Every reason we give in a condition, an Event, a verdict or a skip: one closed list, each with its meaning."""

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """A reason names the cause, not the step; `meaning` is its line in the reference."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """A member is a string that knows its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # Ready
    Reconciled = "Reconciled", "Everything is as asked."
    Adopted = "Adopted", "The dead box exists already and is watched; it is never changed."
    WaitingForCourier = "WaitingForCourier", "The courier's pods are not available yet."
    BrokerUnreachable = "BrokerUnreachable", "Nobody answers at the broker's addresses."
    AddressForbidden = "AddressForbidden", "The broker's address is one that the operator must not dial."
    AuthenticationFailed = "AuthenticationFailed", "The broker refuses the credentials."
    CertificateRefused = "CertificateRefused", "A certificate has expired, is not valid yet or is not trusted."
    NotAuthorised = "NotAuthorised", "The broker knows the user and refuses the operation."
    BoxMissing = "BoxMissing", "A topic or stream that should exist does not."
    BoxConflict = (
        "BoxConflict",
        "Another queue owns the same dead box, others created the box, or what exists differs from what is asked.",
    )
    BoxRefused = "BoxRefused", "The box takes no writes now."
    BoxRecreated = "BoxRecreated", "The box was deleted and made again; a human decides what its ledger is worth."
    BoxesTakenOver = "BoxesTakenOver", "Existing boxes were given to the queue by an annotation."
    BoxesFound = "BoxesFound", "Every box of the queue exists as asked."
    LedgerCorrupt = "LedgerCorrupt", "A record of the ledger cannot be read; nothing is settled until it is mended."
    LedgerTooNew = (
        "LedgerTooNew",
        "A later release wrote a ledger record that must not be skipped; upgrade to that release.",
    )
    PartitionShrinkRefused = "PartitionShrinkRefused", "Partitions are never taken away from a box."
    Suspended = "Suspended", "Work is suspended by the user."
    NotSupportedYet = "NotSupportedYet", "A field is set whose feature is not built yet."
    NotSupported = "NotSupported", "The broker cannot do what is asked."
    InvalidSpec = "InvalidSpec", "The object says something that can never work; the message names the field."
    Pending = "Pending", "Not judged yet."
    CourierAvailable = "CourierAvailable", "The courier's pods are available."
    GroupOffsetsLost = (
        "GroupOffsetsLost",
        "The consumer group had started and has no offsets any more; it waits for deadletter.dev/resume-from.",
    )
    GroupResumed = "GroupResumed", "A group that had lost its offsets goes on where deadletter.dev/resume-from said."
    ResumeIgnored = "ResumeIgnored", "deadletter.dev/resume-from was removed and changed nothing; the message says why."
    NoCourierNeeded = "NoCourierNeeded", "The queue has no delivery, so no courier."
    DeletionBlocked = "DeletionBlocked", "Boxes should be deleted, and a confirmation or the broker is missing."
    ApplyRefused = "ApplyRefused", "The API server refuses a child object."
    # ReferencesResolved
    AllFound = "AllFound", "Everything the object names exists."
    RetryPolicyNotFound = "RetryPolicyNotFound", "The RetryPolicy does not exist."
    BrokerConnectionNotFound = "BrokerConnectionNotFound", "The BrokerConnection does not exist."
    QueueNotFound = "QueueNotFound", "The DeadLetterQueue does not exist."
    ServiceNotFound = "ServiceNotFound", "The Service does not exist."
    ReplayNotFound = "ReplayNotFound", "The Replay that should give the preview does not exist."
    SelfReference = "SelfReference", "A queue cannot reference itself."
    ChainedReference = "ChainedReference", "The target of a route cannot have its own dead-letter queue."
    CyclicReference = "CyclicReference", "The routes of these queues form a circle."
    BrokerMismatch = "BrokerMismatch", "Both queues must live on the same broker."
    SecretNotFound = "SecretNotFound", "The Secret does not exist."
    SecretKeyMissing = "SecretKeyMissing", "The Secret lacks a key."
    SecretNotReadable = "SecretNotReadable", "The operator may not read the Secret."
    # Degraded
    AsExpected = "AsExpected", "Nothing is out of the ordinary."
    DepthHigh = "DepthHigh", "More letters lie open than the alert allows."
    AgeHigh = "AgeHigh", "The oldest open letter is older than the alert allows."
    RetentionLossSoon = "RetentionLossSoon", "Retention will soon eat an open letter."
    CircuitOpen = "CircuitOpen", "Deliveries fail; the source is paused until a probe succeeds."
    CapacityReached = "CapacityReached", "The dead box holds as many letters as it may; the source is paused."
    ErrorBudgetSpent = "ErrorBudgetSpent", "As many letters died in the time as the budget holds; the source is paused."
    TargetForbidden = "TargetForbidden", "The delivery address is one the courier must not call."
    TargetUnresolvable = "TargetUnresolvable", "The delivery host has no address, or TLS with it fails."
    ParkedLettersLost = (
        "ParkedLettersLost",
        "Letters were deleted from the retry box before they were delivered; shown for a day after the last one.",
    )
    LedgerUnderReplicated = (
        "LedgerUnderReplicated",
        "The ledger has fewer replicas than its dead box, and the broker does not let the operator add them.",
    )
    OriginUnknown = (
        "OriginUnknown",
        "Where letters came from is not known: they cannot go back, or a return is not recognised.",
    )
    # Replay
    AllReplayed = "AllReplayed", "Every letter that matched was dealt with."
    DryRunFinished = "DryRunFinished", "The preview is complete; nothing was published."
    NothingMatched = "NothingMatched", "No letter matched the selection, or all of them were settled before."
    Started = "Started", "The Replay has begun."
    Queued = "Queued", "Another Replay of the same queue is running."
    Freezing = "Freezing", "The window is being frozen."
    Running = "Running", "Letters are being replayed."
    Waiting = "Waiting", "A canary step waits for what comes back."
    Verifying = "Verifying", "All letters are sent; what fails again is being watched."
    DeliveryFailed = "DeliveryFailed", "A letter could not be published or delivered."
    FailureShareExceeded = "FailureShareExceeded", "More letters failed again than the share allows."
    DeadlineExceeded = "DeadlineExceeded", "The Replay took longer than its deadline."
    NoProgress = "NoProgress", "Pods of the Replay ended one after the other without a step forward."
    WindowExpired = "WindowExpired", "Retention ate the frozen window."
    QueueNotReady = "QueueNotReady", "The queue is not ready."
    RedriveDisabled = "RedriveDisabled", "The queue only observes; an Apply is refused."
    Fenced = "Fenced", "Another settler of the same box took over."
    # Verdicts
    AttemptsExhausted = "AttemptsExhausted", "As many deliveries as the policy allows have failed."
    Expired = "Expired", "The first failure is longer ago than the policy's maxAge, or retention ate the letter."
    Refused = "Refused", "A failure of this category is not retried."
    RuleMatched = "RuleMatched", "A rule of the policy decided."
    ServiceAsked = "ServiceAsked", "The service asked for it by the Dlq-Action header."
    TooLarge = "TooLarge", "The message exceeds what the box takes."
    Undecodable = "Undecodable", "Nobody can read what lies in a box; out of the source it is buried byte by byte."
    # Skips
    AlreadySettled = "AlreadySettled", "The letter was dealt with before."
    LoopCap = "LoopCap", "The letter was replayed more often than maxReplays allows."
    NoOrigin = "NoOrigin", "The letter does not say where it came from."
    SelectorError = "SelectorError", "The selection could not be evaluated on this letter."
    TransformError = "TransformError", "The transform could not be applied to this letter."
