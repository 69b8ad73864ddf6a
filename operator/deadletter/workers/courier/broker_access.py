"""Notice that a courier can neither claim nor settle anything, over all subscriptions of its process."""

from deadletter.brokers.errors import BrokerError

UNUSABLE_AFTER_S = 600.0  # longer than a restart or a failover of a broker


class BrokerAccess:
    """Whether the requests of a courier succeed.

    Only connection problems count: every other refusal waits for a user, and a new process would meet it too.
    """

    def __init__(self, now: float) -> None:
        self._problem = ""
        self._successes = 0
        self._successes_seen = 0
        self._usable_at = now

    def add_success(self) -> None:
        """Count a claim or a settlement that succeeded; a claim may find nothing."""
        self._successes += 1
        self._problem = ""

    def add_failure(self, error: BrokerError) -> None:
        """Remember why a claim, a settlement or a new subscription failed."""
        self._problem = f"{type(error).__name__}: {error}" if error.is_connection_problem else ""

    def stuck_reason(self, now: float, is_idle_on_purpose: bool) -> str:
        """Return why the process counts as stuck, or nothing: all requests have failed for 10 minutes.

        `now` is monotonic, in seconds.
        """
        if is_idle_on_purpose or not self._problem or self._successes != self._successes_seen:
            self._successes_seen, self._usable_at = self._successes, now
            return ""
        if now - self._usable_at <= UNUSABLE_AFTER_S:
            return ""
        return f"the courier can neither claim nor settle anything: {self._problem}"
