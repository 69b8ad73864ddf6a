"""BrokerConnection: addresses and credentials of a Kafka cluster or a Redis server."""

import re
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from deadletter.api.base import (
    HOST,
    PORT,
    BoundedText,
    Int,
    Model,
    SecretKeyRef,
    SecretRef,
    StatusModel,
    Tls,
    cel_literal,
    secret_key_refs,
    secret_names,
)
from deadletter.api.cel_rules import CelRule, count_set
from deadletter.api.custom_resource import AGE, CustomResource, PrinterColumn, Status, condition_column

SERVER = f"{HOST}:{PORT}"
REDIS_URL = f"rediss?://{HOST}(?::{PORT})?(?:/[0-9]{{0,4}})?"
CONFIG_KEY = r"[a-z][a-z0-9._-]{0,127}"

TopicConfig = Annotated[
    dict[str, Annotated[str, BoundedText(256, r"[ -~]*", "must be plain ASCII", min_length=0)]],
    Field(max_length=32, description="Additional topic configs by their Kafka names. None if unset."),
]


def config_rule(field: str) -> CelRule:
    """Return the rule that a config contains only topic configs that the operator does not set itself."""
    ours = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")
    names = f"self.{field}.all(k, size(k) <= 128 && k.matches({cel_literal(f'^{CONFIG_KEY}$')})"
    taken = ", ".join(f"'{name}'" for name in ours)
    return CelRule(
        f"!has(self.{field}) || {names} && !(k in [{taken}]))",
        f"{field} must contain only names of topic configs, and not {', '.join(ours)}: the operator sets them (use "
        "dead.retention to set the retention)",
        lambda model: all(
            re.fullmatch(CONFIG_KEY, key) is not None and key not in ours for key in getattr(model, field)
        ),
        field,
    )


class Sasl(Model):
    """SASL credentials for Kafka."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(description="SASL mechanism.")
    secret_ref: SecretRef = Field(description="Secret with the keys username and password.")


class BoxDefaults(Model):
    """Defaults for topics that the operator creates on this broker."""

    constraints: ClassVar = (config_rule("config"),)

    partitions: Int | None = Field(
        None,
        ge=1,
        le=10000,
        description="Partitions of a new topic. If unset, as many as the source has, or the broker's default.",
    )
    replication_factor: Int | None = Field(
        None, ge=1, le=100, description="Replicas of a new topic. The broker's default if unset."
    )
    config: TopicConfig = Field(default_factory=dict)


class KafkaConnection(Model):
    """Connection to a Kafka cluster."""

    constraints: ClassVar = (
        CelRule(
            f"self.bootstrapServers.all(s, s.matches({cel_literal(f'^{SERVER}$')}))",
            "bootstrapServers must each be host:port, such as kafka.infra.svc:9092, with no credentials in it",
            lambda kafka: all(re.fullmatch(SERVER, server) is not None for server in kafka.bootstrap_servers),
            "bootstrapServers",
        ),
    )

    bootstrap_servers: tuple[Annotated[str, BoundedText(261)], ...] = Field(
        min_length=1, max_length=16, description="Bootstrap brokers, as host:port."
    )
    tls: Tls | None = Field(None, description="TLS settings. Plain text if unset.")
    sasl: Sasl | None = Field(
        None, description="SASL credentials. If unset, the client is anonymous or authenticated by its TLS certificate."
    )
    defaults: BoxDefaults = Field(
        default_factory=BoxDefaults, description="Defaults for new topics; a queue may override them."
    )


class Sentinel(Model):
    """Addresses of the Redis sentinels."""

    constraints: ClassVar = (
        CelRule(
            f"self.nodes.all(s, s.matches({cel_literal(f'^{SERVER}$')}))",
            "nodes must each be host:port, such as sentinel.infra.svc:26379, with no credentials in it",
            lambda sentinel: all(re.fullmatch(SERVER, node) is not None for node in sentinel.nodes),
            "nodes",
        ),
    )

    master_name: Annotated[
        str, BoundedText(128, "[A-Za-z0-9._-]+", "must be the name of a master: letters, digits, '.', '_' and '-'")
    ] = Field(description="Name of the master in the sentinels' configuration.")
    nodes: tuple[Annotated[str, BoundedText(261)], ...] = Field(
        min_length=1, max_length=16, description="Sentinels, as host:port."
    )
    secret_ref: SecretRef | None = Field(
        None,
        description="Secret with the keys username (optional) and password for the Sentinels themselves. No "
        "authentication if unset.",
    )


class RedisConnection(Model):
    """Connection to a Redis server."""

    constraints: ClassVar = (
        CelRule(
            "!self.url.contains('@')",
            "url must not contain credentials: put username and password into a Secret and reference it in secretRef",
            lambda redis: "@" not in redis.url,
            "url",
        ),
        CelRule(
            f"self.url.contains('@') || self.url.matches({cel_literal(f'^{REDIS_URL}$')})",
            "url must be redis://host:port/database or rediss://host:port/database",
            lambda redis: "@" in redis.url or re.fullmatch(REDIS_URL, redis.url) is not None,
            "url",
        ),
        CelRule(
            "!has(self.tls) || self.url.startsWith('rediss:')",
            "tls requires a url that begins with rediss://",
            lambda redis: redis.tls is None or redis.url.startswith("rediss:"),
            "tls",
        ),
        CelRule(
            "(self.mode == 'Sentinel') == has(self.sentinel)",
            "sentinel must be set if and only if mode is Sentinel",
            lambda redis: (redis.mode == "Sentinel") == (redis.sentinel is not None),
            "sentinel",
        ),
    )

    url: Annotated[str, BoundedText(512)] = Field(
        description="Address as redis://host:port/database, or rediss:// for TLS. Put credentials into secretRef. "
        "With mode Sentinel only scheme and database count, because the Sentinels name the host."
    )
    mode: Literal["Standalone", "Cluster", "Sentinel"] = Field(
        "Standalone", description="Topology of the servers. Cluster is not supported yet."
    )
    sentinel: Sentinel | None = Field(
        None, description="Addresses of the Sentinels and the name of the primary; required with mode Sentinel."
    )
    secret_ref: SecretRef | None = Field(
        None, description="Secret with the keys username (optional) and password. No authentication if unset."
    )
    tls: Tls | None = Field(
        None,
        description="TLS settings; requires a rediss:// url. If unset, rediss:// uses the CA certificates of the "
        "image. It applies to servers and Sentinels.",
    )

    @property
    def sentinel_address(self) -> str:
        """Name of the primary, addresses of its Sentinels and database; empty without Sentinels."""
        if self.sentinel is None:
            return ""
        return f"{self.sentinel.master_name}@{','.join(sorted(self.sentinel.nodes))}/{self.database}"

    @property
    def database(self) -> int:
        """Number of the database that the url names; 0 if it names none."""
        return int(urlsplit(self.url).path.strip("/") or 0)

    @property
    def login_keys(self) -> tuple[SecretKeyRef, ...]:
        """Secret keys that servers and Sentinels require for a login; username is optional."""
        own = secret_key_refs(self.secret_ref, "password")
        return own + (secret_key_refs(self.sentinel.secret_ref, "password") if self.sentinel else ())


class BrokerConnectionSpec(Model):
    """Connection to exactly one broker."""

    constraints: ClassVar = (
        CelRule(
            "has(self.kafka) != has(self.redis)",
            "exactly one of kafka and redis must be set",
            lambda spec: count_set(spec, "kafka", "redis") == 1,
        ),
    )

    kafka: KafkaConnection | None = Field(None, description="Connection to a Kafka cluster.")
    redis: RedisConnection | None = Field(None, description="Connection to a Redis server.")

    @property
    def is_redis(self) -> bool:
        """True if the broker is Redis."""
        return self.redis is not None

    @property
    def tls(self) -> Tls | None:
        """TLS settings of the broker, whatever its kind."""
        return self.kafka.tls if self.kafka else self.redis.tls if self.redis else None

    @property
    def secret_keys(self) -> tuple[SecretKeyRef, ...]:
        """All Secret keys that the connection requires; username is optional on Redis."""
        sasl = self.kafka.sasl if self.kafka else None
        login = secret_key_refs(sasl.secret_ref, "username", "password") if sasl else ()
        login = self.redis.login_keys if self.redis else login
        return login + (self.tls.secret_keys if self.tls else ())

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of all referenced Secrets, without duplicates."""
        return secret_names(self.secret_keys)


class ServerStatus(StatusModel):
    """The broker that responded."""

    kind: str | None = Field(None, description="Kafka or Redis.", max_length=16)
    version: str | None = Field(None, description="Version that the server reports.", max_length=64)
    brokers: int | None = Field(None, description="Number of available brokers.", ge=0)
    transactions: bool | None = Field(None, description="True if it can publish and settle in one transaction.")


class BrokerConnectionStatus(Status):
    """Status of a BrokerConnection."""

    server: ServerStatus | None = Field(None, description="The broker that responded.")
    queues: int | None = Field(None, description="Number of queues that use this connection.", ge=0)


class BrokerConnection(CustomResource):
    """Addresses and credentials of a Kafka cluster or a Redis server. Queues in the same namespace reference it."""

    kind: ClassVar[str] = "BrokerConnection"
    plural: ClassVar[str] = "brokerconnections"
    singular: ClassVar[str] = "brokerconnection"
    short_names: ClassVar[tuple[str, ...]] = ("bkc",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Ready", "Ready"),
        PrinterColumn("Kind", ".status.server.kind", description="Kafka or Redis."),
        PrinterColumn("Server", ".status.server.version", wide=True, description="Version of the server."),
        PrinterColumn("Queues", ".status.queues", "integer", description="Number of queues that use it."),
        condition_column("Reason", "Ready", "reason"),
        AGE,
    )

    spec: BrokerConnectionSpec = Field(description="Connection to the broker.")
    status: BrokerConnectionStatus = Field(
        default_factory=BrokerConnectionStatus, description="Observed state, written by the operator."
    )
