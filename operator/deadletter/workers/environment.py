"""The environment of a worker pod: where its assignment and Secrets are mounted, and how it reports why it ended.

$DLQ_ASSIGNMENT_DIR/assignment.json   what to do; a change rolls the pod
$DLQ_ASSIGNMENT_DIR/live.json         settings that are read again while the pod runs (live_config.py)
$DLQ_SECRETS_DIR/<name>/<key>         mounted Secrets
$DLQ_TERMINATION_LOG                  one JSON object of at most 4 KiB, written at the end
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

ModelT = TypeVar("ModelT", bound=BaseModel)
MAX_TERMINATION_MESSAGE_BYTES = 4096
MAX_MESSAGE_CHARACTERS = 1024


class AssignmentError(Exception):
    """The assignment is missing or not valid; the text names fields, never values."""


@dataclass(slots=True, frozen=True)
class WorkerEnvironment:
    """Paths, port and pod name of one worker, read once from environment variables."""

    assignment_dir: Path
    secrets_dir: Path
    health_port: int
    pod: str
    termination_log: Path

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> "WorkerEnvironment":
        """Read the environment variables of this process."""
        return cls(
            assignment_dir=Path(variables.get("DLQ_ASSIGNMENT_DIR", "/etc/deadletter")),
            secrets_dir=Path(variables.get("DLQ_SECRETS_DIR", "/secrets")),
            health_port=int(variables.get("DLQ_HEALTH_PORT", "8081")),
            pod=variables.get("POD_NAME") or variables.get("HOSTNAME") or "worker",
            termination_log=Path(variables.get("DLQ_TERMINATION_LOG", "/dev/termination-log")),
        )

    def read_assignment(self, model: type[ModelT]) -> ModelT:
        """Return assignment.json as `model`; AssignmentError if it is missing or not valid."""
        try:
            return model.model_validate_json((self.assignment_dir / "assignment.json").read_bytes())
        except OSError as error:
            raise AssignmentError("assignment.json cannot be read") from error
        except ValidationError as error:
            fields = ", ".join(sorted({".".join(str(part) for part in detail["loc"]) for detail in error.errors()}))
            raise AssignmentError(f"assignment.json is not valid at: {fields}"[:MAX_MESSAGE_CHARACTERS]) from None

    def write_termination_message(self, reason: str, message: str = "", **more: object) -> None:
        """Write the reason of the end where Kubernetes copies it into the pod's status; never fails."""
        content = orjson.dumps({"reason": reason, "message": message[:MAX_MESSAGE_CHARACTERS], **more})
        if len(content) > MAX_TERMINATION_MESSAGE_BYTES:
            content = orjson.dumps({"reason": reason, "message": message[: MAX_MESSAGE_CHARACTERS // 2]})
        with suppress(OSError):
            self.termination_log.write_bytes(content)
