"""Make the security settings of Kafka clients from a BrokerConnection and its Secrets."""

from collections.abc import Mapping
from typing import Any

from deadletter.api.broker_connections import KafkaConnection
from deadletter.brokers.credentials import read_secret, read_text, tls_context, tls_files
from deadletter.net.secrets import Secrets


class KafkaCredentials:
    """Security settings of a Kafka client. They are built again only if a Secret has changed."""

    def __init__(self, spec: KafkaConnection, secrets: Secrets) -> None:
        self._spec, self._secrets = spec, secrets
        self._files: tuple[bytes | None, ...] | None = None
        self._settings: dict[str, Any] = {}

    def __call__(self) -> Mapping[str, Any]:
        """Return the current settings; the same object as before if no Secret has changed."""
        files = self._read()
        if files != self._files:
            self._settings, self._files = self._build(), files
        return self._settings

    def _read(self) -> tuple[bytes | None, ...]:
        sasl = self._spec.sasl
        keys = ("username", "password")
        login = [read_secret(self._secrets, sasl.secret_ref.name, key) for key in keys] if sasl else []
        return (*login, *tls_files(self._spec.tls, self._secrets))

    def _build(self) -> dict[str, Any]:
        sasl, tls = self._spec.sasl, self._spec.tls
        settings: dict[str, Any] = {"security_protocol": ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")}
        if tls is not None:
            settings["ssl_context"] = tls_context(tls, self._secrets)
        if sasl is not None:
            settings["sasl_mechanism"] = sasl.mechanism
            for setting, key in (("sasl_plain_username", "username"), ("sasl_plain_password", "password")):
                settings[setting] = read_text(self._secrets, sasl.secret_ref.name, key)
        return settings
