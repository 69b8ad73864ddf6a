"""Condition types of the four kinds, and the status that each has when all is well."""

READY = "Ready"
REFERENCES_RESOLVED = "ReferencesResolved"
BOXES_READY = "BoxesReady"
COURIER_AVAILABLE = "CourierAvailable"
DEGRADED = "Degraded"
RECONCILING = "Reconciling"
STALLED = "Stalled"
SUCCEEDED = "Succeeded"
SUSPENDED = "Suspended"

# A condition with any other status has a message. The Reason column of `kubectl get` shows the first such condition.
EXPECTED_STATUS = {
    READY: "True",
    REFERENCES_RESOLVED: "True",
    BOXES_READY: "True",
    COURIER_AVAILABLE: "True",
    SUCCEEDED: "True",
    DEGRADED: "False",
    RECONCILING: "False",
    STALLED: "False",
    SUSPENDED: "False",
}
