"""Find the dead box that the command `letters` reads: by a worker's assignment, or by manifests in files."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml
from pydantic import BaseModel, ValidationError

from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueueSpec
from deadletter.api.queue_spec import Redaction
from deadletter.api.worker_config import LiveConfig
from deadletter.core import names
from deadletter.net.secrets import Secrets, mounted_secrets

# Outside a pod the person who runs the command chose the broker's address, so the address guard admits any.
ANY_ADDRESS = ("0.0.0.0/0", "::/0")
Spec = TypeVar("Spec", bound=BaseModel)


class UsageError(Exception):
    """The options name no box, or name what does not exist; the text names the option and the remedy."""


@dataclass(slots=True, frozen=True)
class LetterSource:
    """A dead box: how to connect to its broker, how to read its letters, and what to redact."""

    broker: BrokerConnectionSpec
    dead: str
    ledger: str
    secrets: Secrets
    allow: tuple[str, ...] = ()
    dialect: str = "Auto"
    read_values: bool = False
    origin: str | None = None
    hidden_headers: tuple[str, ...] = ("authorization",)
    hidden_pointers: tuple[str, ...] = ()
    is_read_only: bool = False  # the operator writes nothing to this box, so it may have no ledger

    @property
    def read_options(self) -> tuple[str, bool, str | None]:
        """The arguments of `read_letter` after the message and its place."""
        return self.dialect, self.read_values, self.origin


def find_source(options: argparse.Namespace) -> LetterSource:
    """Return the source that the options name; UsageError says what is missing."""
    return _source_of_assignment(options) if options.connection is None else _source_of_manifests(options)


def _source_of_assignment(options: argparse.Namespace) -> LetterSource:
    directory = options.assignment
    try:
        assignment = orjson.loads((directory / "assignment.json").read_bytes())
        live = _validate(LiveConfig, orjson.loads((directory / "live.json").read_bytes()), f"--assignment {directory}")
    except OSError:
        raise UsageError(
            f"--assignment {directory}: there is no assignment here. Name a queue with -n NAMESPACE QUEUE, "
            "or use --connection FILE with --dead BOX or --queue FILE"
        ) from None
    except orjson.JSONDecodeError:
        raise UsageError(f"--assignment {directory}: assignment.json or live.json is not JSON") from None
    boxes = assignment["boxes"]
    dead = options.dead or boxes["dead"]
    source = LetterSource(
        broker=_validate(BrokerConnectionSpec, assignment["broker"], f"--assignment {directory}"),
        dead=dead,
        ledger=boxes["ledger"] if dead == boxes["dead"] else names.ledger_name(dead),
        secrets=mounted_secrets(options.secrets),
        allow=tuple(assignment.get("allow", ())),
        dialect=assignment.get("dialect", "Auto"),
        read_values=assignment.get("read_values", False),
        origin=assignment.get("origin"),
    )
    return _redact_as(source, live.redaction)


def _validate(model: type[Spec], content: Any, option: str) -> Spec:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        fields = ", ".join(sorted({".".join(map(str, found["loc"])) for found in error.errors()}))
        raise UsageError(f"{option}: invalid fields: {fields}") from None


def _read_manifest(model: type[Spec], option: str, path: Path, kind: str) -> Spec:
    """Return the spec of the first object of this kind in a file."""
    try:
        bodies = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        raise UsageError(f"{option} {path}: the file cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise UsageError(f"{option} {path}: the file is not YAML") from None
    for body in bodies:
        if isinstance(body, dict) and body.get("kind") == kind:
            return _validate(model, body.get("spec") or {}, f"{option} {path}")
    raise UsageError(f"{option} {path}: the file has no {kind}; name one that has")


def _source_of_manifests(options: argparse.Namespace) -> LetterSource:
    broker = _read_manifest(BrokerConnectionSpec, "--connection", options.connection, "BrokerConnection")
    queue = None
    if options.queue is not None:
        queue = _read_manifest(DeadLetterQueueSpec, "--queue", options.queue, "DeadLetterQueue")
    dead = options.dead or (_dead_box_of(queue, broker) if queue else None)
    if dead is None:
        raise UsageError("--connection needs a box: name it with --dead BOX, or its queue with --queue FILE")
    source = LetterSource(broker, dead, names.ledger_name(dead), mounted_secrets(options.secrets), ANY_ADDRESS)
    return source if queue is None else apply_queue(source, queue)


def _dead_box_of(queue: DeadLetterQueueSpec, broker: BrokerConnectionSpec) -> str | None:
    if queue.dead.name is not None or queue.source is None:
        return queue.dead.name
    return names.dead_box_name(queue.source.name, queue.source.group, broker.redis is not None)


def _redact_as(source: LetterSource, redaction: Redaction | None) -> LetterSource:
    if redaction is None:
        return source
    return replace(source, hidden_headers=tuple(redaction.headers), hidden_pointers=tuple(redaction.json_pointers))


def apply_queue(source: LetterSource, queue: DeadLetterQueueSpec) -> LetterSource:
    """Return the source with the queue's dialect, origin and redaction."""
    return replace(
        _redact_as(source, queue.redaction),
        dialect=queue.dead.dialect,
        read_values=queue.dead.read_values,
        origin=queue.dead.origin,
        is_read_only=queue.redrive.strategy == "Disabled",
    )
