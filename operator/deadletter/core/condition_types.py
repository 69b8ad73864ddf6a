"""Condition types of the four kinds: their meaning, and the status that each has when all is well."""

READY = "Ready"
REFERENCES_RESOLVED = "ReferencesResolved"
BOXES_READY = "BoxesReady"
COURIER_AVAILABLE = "CourierAvailable"
DEGRADED = "Degraded"
RECONCILING = "Reconciling"
STALLED = "Stalled"
SUCCEEDED = "Succeeded"
FINISHED = "Finished"
SUSPENDED = "Suspended"

MEANINGS = {
    READY: "The object works. Computed from the conditions below it.",
    REFERENCES_RESOLVED: "Everything that the object refers to exists and may be used.",
    BOXES_READY: "The topics or streams exist as the spec says.",
    COURIER_AVAILABLE: "The courier's pods are available. True without delivery.",
    DEGRADED: "The object works, and something is wrong: many or old letters, an open circuit, a full box.",
    RECONCILING: "The operator is processing the last change.",
    STALLED: "The operator cannot continue until you change something. The message says what.",
    SUCCEEDED: "Replay only: True when it ended well, False when it failed, Unknown while it runs.",
    FINISHED: "Replay only: True when it ended, well or not, or cannot go on until you change something; wait for it.",
    SUSPENDED: "Replay only: it waits because spec.suspend is true.",
}
# A condition with any other status has a message. The Reason column of `kubectl get` shows the first such condition.
EXPECTED_STATUS = {
    READY: "True",
    REFERENCES_RESOLVED: "True",
    BOXES_READY: "True",
    COURIER_AVAILABLE: "True",
    SUCCEEDED: "True",
    FINISHED: "True",
    DEGRADED: "False",
    RECONCILING: "False",
    STALLED: "False",
    SUSPENDED: "False",
}
