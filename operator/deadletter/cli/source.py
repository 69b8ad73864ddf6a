"""Which dead box a person means: by an assignment in a worker's pod, or by manifests on a desk."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from deadletter.api.assignments import LiveConfig
from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.dead_letter_queues import DeadLetterQueueSpec, Redaction
from deadletter.core import names
from deadletter.net.secrets import Secrets, mounted_secrets

ANY_ADDRESS = ("0.0.0.0/0", "::/0")  # at a desk a person dials, not a pod for somebody


class UsageError(Exception):
    """It is not clear which box is meant."""


@dataclass(slots=True, frozen=True)
class LetterSource:
    """Where letters are shown: the box, how to reach it, how to read it, what to hide."""

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
    is_read_only: bool = False

    @property
    def read_options(self) -> tuple[str, bool, str | None]:
        """How its letters are read."""
        return self.dialect, self.read_values, self.origin


def find_source(options: argparse.Namespace) -> LetterSource:
    """The counter of these options; CounterError says what is missing."""
    try:
        if options.connection is None:
            return _of_assignment(options)
        return _of_manifests(options)
    except ValidationError as error:
        fields = ", ".join(sorted({".".join(map(str, found["loc"])) for found in error.errors()}))
        raise UsageError(f"a manifest is not understood at: {fields}") from None


def _of_assignment(options: argparse.Namespace) -> LetterSource:
    try:
        told = orjson.loads((options.assignment / "assignment.json").read_bytes())
        live: LiveConfig = LiveConfig.model_validate_json((options.assignment / "live.json").read_bytes())
    except OSError:
        raise UsageError(
            "say -n namespace and a queue, or --connection file and --dead box: there is no assignment here"
        ) from None
    boxes = told["boxes"]
    dead = options.dead or boxes["dead"]
    counter = LetterSource(
        broker=BrokerConnectionSpec.model_validate(told["broker"]),
        dead=dead,
        ledger=boxes["ledger"] if dead == boxes["dead"] else names.ledger_name(dead),
        secrets=mounted_secrets(options.secrets),
        allow=tuple(told.get("allow", ())),
        dialect=told.get("dialect", "Auto"),
        read_values=told.get("read_values", False),
        origin=told.get("origin"),
    )
    return _hiding(counter, live.redaction)


def _manifest(path: Path, kind: str) -> Any:
    for body in yaml.safe_load_all(path.read_text()):
        if isinstance(body, dict) and body.get("kind") == kind:
            return body.get("spec") or {}
    raise UsageError(f"there is no {kind} in the file that was named")


def _of_manifests(options: argparse.Namespace) -> LetterSource:
    broker = BrokerConnectionSpec.model_validate(_manifest(options.connection, "BrokerConnection"))
    queue = None
    if options.queue is not None:
        queue = DeadLetterQueueSpec.model_validate(_manifest(options.queue, "DeadLetterQueue"))
    dead = options.dead or (_dead_of(queue, broker) if queue else None)
    if dead is None:
        raise UsageError("say which box: --dead box, or --queue file")
    counter = LetterSource(broker, dead, names.ledger_name(dead), mounted_secrets(options.secrets), ANY_ADDRESS)
    return counter if queue is None else apply_queue(counter, queue)


def _dead_of(queue: DeadLetterQueueSpec, broker: BrokerConnectionSpec) -> str | None:
    if queue.dead.name is not None or queue.source is None:
        return queue.dead.name
    return names.dead_box_name(queue.source.name, queue.source.group, broker.redis is not None)


def _hiding(counter: LetterSource, hidden: Redaction | None) -> LetterSource:
    if hidden is None:
        return counter
    return replace(counter, hidden_headers=tuple(hidden.headers), hidden_pointers=tuple(hidden.json_pointers))


def apply_queue(counter: LetterSource, queue: DeadLetterQueueSpec) -> LetterSource:
    """The counter as the queue wants it: its dialect, and what it hides."""
    return replace(
        _hiding(counter, queue.redaction),
        dialect=queue.dead.dialect,
        read_values=queue.dead.read_values,
        origin=queue.dead.origin,
        is_read_only=queue.redrive.strategy == "Disabled",
    )
