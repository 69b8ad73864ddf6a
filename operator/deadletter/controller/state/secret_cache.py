"""Cache of Secrets, each read by GET and read again after a minute; Secrets are never listed or watched."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeVar

from deadletter.kube import SECRETS, ApiError, KubeClient
from deadletter.net.secrets import READABLE_LABEL, Secrets, decode_secret
from deadletter.plan.facts import SecretFact

REFRESH_INTERVAL_S = 10.0
MISSING_TTL_S = 5.0
SecretName = tuple[str, str]  # namespace and name
User = TypeVar("User")


@dataclass(slots=True)
class CachedSecret:
    """What a Secret contained when it was read."""

    fact: SecretFact
    content: dict[str, bytes] = field(default_factory=dict)
    read_at: float = 0.0


class SecretCache:
    """The Secrets that connections and deliveries name."""

    def __init__(self, kube: KubeClient, ttl_s: float, require_label: bool, grant: str) -> None:
        self._kube = kube
        self._ttl_s = ttl_s
        self._require_label = require_label
        self._grant = grant
        self._cached: dict[SecretName, CachedSecret] = {}

    async def fact(self, namespace: str, name: str) -> SecretFact:
        """Return what is known of a Secret, read again when that is too old; an API error leaves the cache as it is."""
        cached = self._cached.get((namespace, name))
        if cached is not None and time.monotonic() - cached.read_at < self._max_age_s(cached):
            return cached.fact
        fresh = await self._read(namespace, name)
        self._cached[namespace, name] = fresh
        return fresh.fact

    def _max_age_s(self, cached: CachedSecret) -> float:
        is_usable = cached.fact.exists and cached.fact.readable
        return self._ttl_s if is_usable else min(MISSING_TTL_S, self._ttl_s)

    async def _read(self, namespace: str, name: str) -> CachedSecret:
        try:
            body = await self._kube.get(SECRETS, namespace, name)
        except ApiError as error:
            if error.status != 403:
                raise
            refusal = self._explain_forbidden(namespace, name)
            return CachedSecret(SecretFact(readable=False, refusal=refusal), read_at=time.monotonic())
        if body is None:
            return CachedSecret(SecretFact(exists=False), read_at=time.monotonic())
        if self._require_label and (body["metadata"].get("labels") or {}).get(READABLE_LABEL) != "true":
            refusal = f"The operator reads Secret {name} only with the label {READABLE_LABEL}=true; add it."
            return CachedSecret(SecretFact(readable=False, refusal=refusal), read_at=time.monotonic())
        content = decode_secret(body)
        return CachedSecret(SecretFact(frozenset(content)), content, time.monotonic())

    def _explain_forbidden(self, namespace: str, name: str) -> str:
        bind = f"kubectl -n {namespace} create rolebinding dlq-operator-secrets {self._grant}"
        return f"The operator may not read Secret {name}; allow it with: {bind}"

    def reader(self, namespace: str) -> Secrets:
        """Return a function that reads a key of a cached Secret of this namespace, as last read."""

        def read(name: str, key: str) -> bytes:
            return self._cached[namespace, name].content[key]

        return read

    async def refresh_forever(
        self, users: Callable[[], Mapping[SecretName, Iterable[User]]], on_change: Callable[[User], None]
    ) -> None:
        """Read the Secrets in use again when they are old, and call `on_change` for each user of a changed one.

        Run it as a task of its own, because no broker may delay it.
        """
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            used = users()
            self._forget_unused(used.keys())
            for (namespace, name), users_of_secret in used.items():
                if await self._has_changed(namespace, name):
                    for user in users_of_secret:
                        on_change(user)

    def _forget_unused(self, used: AbstractSet[SecretName]) -> None:
        """Remove the content of Secrets that are no longer named from memory."""
        for name in self._cached.keys() - used:
            del self._cached[name]

    async def _has_changed(self, namespace: str, name: str) -> bool:
        """True if a Secret that was read before has another content now."""
        before = self._last_read(namespace, name)
        try:
            await self.fact(namespace, name)
        except ApiError:
            return False
        return before is not None and before != self._last_read(namespace, name)

    def _last_read(self, namespace: str, name: str) -> object:
        cached = self._cached.get((namespace, name))
        return (cached.fact, cached.content) if cached else None
