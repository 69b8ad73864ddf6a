"""Secrets by get alone: never listed, never watched, re-read when what is known of them is a minute old."""

import base64
import binascii
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from deadletter.kube import SECRETS, ApiError, Cluster
from deadletter.plan.facts import SecretFact

READABLE = "deadletter.dev/readable"
Read = Callable[[str, str], bytes]


@dataclass(slots=True)
class Kept:
    """What a Secret held when it was read."""

    fact: SecretFact
    content: dict[str, bytes] = field(default_factory=dict)
    at: float = 0.0


class SecretStore:
    """The Secrets that connections and deliveries name."""

    def __init__(self, cluster: Cluster, seconds: float, require_label: bool, grant: str) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._require_label = require_label
        self._grant = grant
        self._kept: dict[tuple[str, str], Kept] = {}

    async def fact(self, namespace: str, name: str) -> SecretFact:
        """What is known of it, read again when that is old; trouble with the API keeps the last word."""
        kept = self._kept.get((namespace, name))
        if kept is not None and time.monotonic() - kept.at < self._wait(kept):
            return kept.fact
        fresh = await self._read(namespace, name)
        self._kept[namespace, name] = fresh
        return fresh.fact

    def _wait(self, kept: Kept) -> float:
        # One that is missing is waited for by somebody.
        return self._seconds if kept.fact.exists and kept.fact.readable else min(5.0, self._seconds)

    async def _read(self, namespace: str, name: str) -> Kept:
        try:
            body = await self._cluster.get(SECRETS, namespace, name)
        except ApiError as error:
            if error.status != 403:
                raise
            return Kept(SecretFact(readable=False, refusal=self._refusal(namespace, name)), at=time.monotonic())
        if body is None:
            return Kept(SecretFact(exists=False), at=time.monotonic())
        if self._require_label and (body["metadata"].get("labels") or {}).get(READABLE) != "true":
            refusal = f"Secret {name} needs the label {READABLE}=true before it is read."
            return Kept(SecretFact(readable=False, refusal=refusal), at=time.monotonic())
        content = {key: _decoded(text) for key, text in (body.get("data") or {}).items()}
        return Kept(SecretFact(frozenset(content)), content, time.monotonic())

    def _refusal(self, namespace: str, name: str) -> str:
        bind = f"kubectl -n {namespace} create rolebinding dlq-operator-secrets {self._grant}"
        return f"the operator may not read Secret {name}; allow it with: {bind}"

    def reader(self, namespace: str) -> Read:
        """How a broker reads its Secrets: always what was read last."""

        def read(name: str, key: str) -> bytes:
            return self._kept[namespace, name].content[key]

        return read

    def known(self, namespace: str, name: str) -> object:
        """What was read last, only to be compared; None: never read."""
        kept = self._kept.get((namespace, name))
        return (kept.fact, kept.content) if kept else None

    def forget_unused(self, used: AbstractSet[tuple[str, str]]) -> None:
        """Nobody names them any more: their content leaves our memory."""
        for key in self._kept.keys() - used:
            del self._kept[key]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""
