"""Secrets by get alone: never listed, never watched, re-read when what is known of them is a minute old."""

import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from deadletter.kube import SECRETS, ApiError, Cluster
from deadletter.net.secrets import Secrets, decode_secret
from deadletter.plan.facts import SecretFact

READABLE_LABEL = "deadletter.dev/readable"


@dataclass(slots=True)
class CachedSecret:
    """What a Secret held when it was read."""

    fact: SecretFact
    content: dict[str, bytes] = field(default_factory=dict)
    read_at: float = 0.0


class SecretCache:
    """The Secrets that connections and deliveries name."""

    def __init__(self, kube: Cluster, seconds: float, require_label: bool, grant: str) -> None:
        self._kube = kube
        self._ttl_s = seconds
        self._require_label = require_label
        self._grant = grant
        self._cached: dict[tuple[str, str], CachedSecret] = {}

    async def fact(self, namespace: str, name: str) -> SecretFact:
        """What is known of it, read again when that is old; trouble with the API keeps the last word."""
        kept = self._cached.get((namespace, name))
        if kept is not None and time.monotonic() - kept.read_at < self._max_age_s(kept):
            return kept.fact
        fresh = await self._read(namespace, name)
        self._cached[namespace, name] = fresh
        return fresh.fact

    def _max_age_s(self, kept: CachedSecret) -> float:
        # One that is missing is waited for by somebody.
        return self._ttl_s if kept.fact.exists and kept.fact.readable else min(5.0, self._ttl_s)

    async def _read(self, namespace: str, name: str) -> CachedSecret:
        try:
            body = await self._kube.get(SECRETS, namespace, name)
        except ApiError as error:
            if error.status != 403:
                raise
            return CachedSecret(SecretFact(readable=False, refusal=self._refusal(namespace, name)), read_at=time.monotonic())
        if body is None:
            return CachedSecret(SecretFact(exists=False), read_at=time.monotonic())
        if self._require_label and (body["metadata"].get("labels") or {}).get(READABLE_LABEL) != "true":
            refusal = f"Secret {name} needs the label {READABLE_LABEL}=true before it is read."
            return CachedSecret(SecretFact(readable=False, refusal=refusal), read_at=time.monotonic())
        content = decode_secret(body)
        return CachedSecret(SecretFact(frozenset(content)), content, time.monotonic())

    def _refusal(self, namespace: str, name: str) -> str:
        bind = f"kubectl -n {namespace} create rolebinding dlq-operator-secrets {self._grant}"
        return f"the operator may not read Secret {name}; allow it with: {bind}"

    def reader(self, namespace: str) -> Secrets:
        """How a broker reads its Secrets: always what was read last."""

        def read(name: str, key: str) -> bytes:
            return self._cached[namespace, name].content[key]

        return read

    def last_read(self, namespace: str, name: str) -> object:
        """What was read last, only to be compared; None: never read."""
        kept = self._cached.get((namespace, name))
        return (kept.fact, kept.content) if kept else None

    def forget_unused(self, used: AbstractSet[tuple[str, str]]) -> None:
        """Nobody names them any more: their content leaves our memory."""
        for key in self._cached.keys() - used:
            del self._cached[key]
