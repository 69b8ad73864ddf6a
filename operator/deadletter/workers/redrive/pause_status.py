"""Why a redriver waits: said to the ledger, from where the sweep takes it to the status, and to Prometheus."""

from deadletter import logs
from deadletter.api.assignments import Boxes
from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BrokerError
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.reasons import Reason
from deadletter.workers import metrics

SAY_MS = 30_000  # a word is believed for three times as long
SENTENCES: dict[str, str] = {
    Reason.ErrorBudgetSpent: "As many letters died as the error budget allows: none is sent back until fewer do.",
    Reason.FailureShareExceeded: "Letters return faster than they leave: none is sent back until that ends.",
}


class PauseReporter:
    """The pauses of one redriver; `reason` is why it waits now, or nothing."""

    def __init__(self, broker: Broker, boxes: Boxes, pod: str, where: tuple[str, str]) -> None:
        self._broker, self._boxes, self._pod, self._where = broker, boxes, pod, where
        self._said: WorkerStatus | None = None
        self._log = logs.get(__name__)
        self.reason = ""

    async def report(self, reason: str, now: int) -> None:
        """It waits for this reason now, or for none."""
        if reason != self.reason:
            self._log.info("the gate moved", paused=str(reason))
            if self.reason:
                metrics.REDRIVE_PAUSED.labels(*self._where, str(self.reason)).set(0)
        if reason:
            metrics.REDRIVE_PAUSED.labels(*self._where, str(reason)).set(1)
        self.reason = reason
        if reason in SENTENCES:  # of the others the operator knows before us
            await self._say(WorkerStatus(self._pod, paused=str(reason), message=SENTENCES[reason], at=now))
        else:
            await self.withdraw()

    async def withdraw(self) -> None:
        """Take back what was said."""
        if self._said is not None:
            await self._write(None)

    async def _say(self, word: WorkerStatus) -> None:
        said = self._said
        if said is None or said.paused != word.paused or not 0 <= word.at - said.at < SAY_MS:
            await self._write(word)

    async def _write(self, word: WorkerStatus | None) -> None:
        try:
            await self._broker.report_status(self._boxes.dead, self._boxes.ledger, self._pod, word)
        except BrokerError as error:
            self._log.warning("the ledger did not take the redriver's word", error=type(error).__name__)
        else:
            self._said = word
