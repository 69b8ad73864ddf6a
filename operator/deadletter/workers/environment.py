"""Where a worker stands: what it is told, where its Secrets lie, how it says why it ended.

$DLQ_ASSIGNMENT_DIR/assignment.json   what to do (a change rolls the pod)
$DLQ_ASSIGNMENT_DIR/live.json         gate and rate, re-read while it runs (live.py)
$DLQ_SECRETS_DIR/<name>/<key>         mounted Secrets
$DLQ_TERMINATION_LOG                  one JSON line, at most 4 KiB, when it ends
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

Told = TypeVar("Told", bound=BaseModel)
MAX_TERMINATION_MESSAGE_BYTES = 4096
MAX_MESSAGE_CHARACTERS = 1024


class AssignmentError(Exception):
    """The assignment is missing or cannot be read; the sentence names fields, never values."""


@dataclass(slots=True, frozen=True)
class WorkerEnvironment:
    """The surroundings of one worker, read once from its environment."""

    assignments: Path
    secrets: Path
    health_port: int
    pod: str
    termination: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "WorkerEnvironment":
        """The station of this process."""
        return cls(
            assignments=Path(environment.get("DLQ_ASSIGNMENT_DIR", "/etc/deadletter")),
            secrets=Path(environment.get("DLQ_SECRETS_DIR", "/secrets")),
            health_port=int(environment.get("DLQ_HEALTH_PORT", "8081")),
            pod=environment.get("POD_NAME") or environment.get("HOSTNAME") or "worker",
            termination=Path(environment.get("DLQ_TERMINATION_LOG", "/dev/termination-log")),
        )

    def read(self, model: type[Told]) -> Told:
        """The assignment as `model`; AssignmentError says what is wrong with it."""
        try:
            return model.model_validate_json((self.assignments / "assignment.json").read_bytes())
        except OSError as error:
            raise AssignmentError("assignment.json cannot be read") from error
        except ValidationError as error:
            fields = ", ".join(sorted({".".join(str(part) for part in found["loc"]) for found in error.errors()}))
            raise AssignmentError(f"assignment.json is not understood at: {fields}"[:MAX_MESSAGE_CHARACTERS]) from None

    def terminate(self, reason: str, message: str = "", **more: object) -> None:
        """Leave the last word where the operator finds it in the pod's status; never fails."""
        word = {"reason": reason, "message": message[:MAX_MESSAGE_CHARACTERS], **more}
        line = orjson.dumps(word)
        if len(line) > MAX_TERMINATION_MESSAGE_BYTES:
            line = orjson.dumps({"reason": reason, "message": message[: MAX_MESSAGE_CHARACTERS // 2]})
        with suppress(OSError):
            self.termination.write_bytes(line)
