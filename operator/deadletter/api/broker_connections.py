"""BrokerConnection: where a Kafka or a Redis is, and how to log in."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from deadletter.api.base import (
    HOST,
    PORT,
    BoundedText,
    Int,
    Model,
    NameRef,
    SecretKeyRef,
    SecretRef,
    StatusModel,
    Tls,
    cel_literal,
    secret_key_refs,
    secret_names,
)
from deadletter.api.cel_rules import CelRule, count_set
from deadletter.api.kinds import AGE, CustomResource, PrinterColumn, Status, condition_column

__all__ = [
    "BoxDefaults",
    "BrokerConnection",
    "BrokerConnectionSpec",
    "BrokerConnectionStatus",
    "TopicConfig",
    "KafkaConnection",
    "NameRef",
    "RedisConnection",
    "Sasl",
    "SecretKeyRef",
    "SecretRef",
    "Sentinel",
    "ServerStatus",
    "Tls",
    "config_rule",
]

SERVER = f"{HOST}:{PORT}"
REDIS_URL = f"rediss?://{HOST}(?::{PORT})?(?:/[0-9]{{0,4}})?"
CONFIG_KEY = r"[a-z][a-z0-9._-]{0,127}"

TopicConfig = Annotated[
    dict[str, Annotated[str, BoundedText(256, r"[ -~]*", "must be plain ASCII", min_length=0)]],
    Field(max_length=32, description="More topic configs, by Kafka's own names."),
]


def config_rule(field: str) -> CelRule:
    """Names of topic configs, and not those that the operator sets itself."""
    ours = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")
    names = f"self.{field}.all(k, size(k) <= 128 && k.matches({cel_literal(f'^{CONFIG_KEY}$')})"
    taken = ", ".join(f"'{name}'" for name in ours)
    return CelRule(
        f"!has(self.{field}) || {names} && !(k in [{taken}]))",
        f"{field} takes names of topic configs, but not {', '.join(ours)}: the operator sets them (retention has a "
        "field of its own)",
        lambda model: all(
            re.fullmatch(CONFIG_KEY, key) is not None and key not in ours for key in getattr(model, field)
        ),
        field,
    )


class Sasl(Model):
    """Who we are, to Kafka."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(description="How we log in.")
    secret_ref: SecretRef = Field(description="A Secret with keys username and password.")


class BoxDefaults(Model):
    """What boxes on this broker look like when a queue does not say."""

    constraints: ClassVar = (config_rule("config"),)

    partitions: Int | None = Field(
        None,
        ge=1,
        le=10000,
        description="Partitions of a new topic. Absent: as many as the source has, else the broker's default.",
    )
    replication_factor: Int | None = Field(
        None, ge=1, le=100, description="Copies of a new topic. Absent: the broker's default."
    )
    config: TopicConfig = Field(default_factory=dict)


class KafkaConnection(Model):
    """A Kafka cluster."""

    constraints: ClassVar = (
        CelRule(
            f"self.bootstrapServers.all(s, s.matches({cel_literal(f'^{SERVER}$')}))",
            "bootstrapServers must each be host:port, such as kafka.infra.svc:9092, with no credentials in it",
            lambda kafka: all(re.fullmatch(SERVER, server) is not None for server in kafka.bootstrap_servers),
            "bootstrapServers",
        ),
    )

    bootstrap_servers: tuple[Annotated[str, BoundedText(261)], ...] = Field(
        min_length=1, max_length=16, description="Brokers to ask first, as host:port."
    )
    tls: Tls | None = Field(None, description="Use TLS. Absent: plain text.")
    sasl: Sasl | None = Field(None, description="Log in. Absent: anonymous, or by our TLS certificate.")
    defaults: BoxDefaults = Field(
        default_factory=BoxDefaults, description="What topics look like when a queue does not say."
    )


class Sentinel(Model):
    """Where the sentinels of a Redis are."""

    constraints: ClassVar = (
        CelRule(
            f"self.nodes.all(s, s.matches({cel_literal(f'^{SERVER}$')}))",
            "nodes must each be host:port, such as sentinel.infra.svc:26379, with no credentials in it",
            lambda sentinel: all(re.fullmatch(SERVER, node) is not None for node in sentinel.nodes),
            "nodes",
        ),
    )

    master_name: Annotated[
        str, BoundedText(128, "[A-Za-z0-9._-]+", "must be the name of a master: letters, digits, ._-")
    ] = Field(description="Name under which the sentinels know the master.")
    nodes: tuple[Annotated[str, BoundedText(261)], ...] = Field(
        min_length=1, max_length=16, description="Sentinels, as host:port."
    )


class RedisConnection(Model):
    """A Redis server."""

    constraints: ClassVar = (
        CelRule(
            "!self.url.contains('@')",
            "url must not hold credentials: put username and password into a Secret and name it in secretRef",
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
            "tls needs a url that begins with rediss://",
            lambda redis: redis.tls is None or redis.url.startswith("rediss:"),
            "tls",
        ),
        CelRule(
            "(self.mode == 'Sentinel') == has(self.sentinel)",
            "mode Sentinel needs sentinel, and sentinel needs mode Sentinel",
            lambda redis: (redis.mode == "Sentinel") == (redis.sentinel is not None),
            "sentinel",
        ),
    )

    url: Annotated[str, BoundedText(512)] = Field(
        description="redis://host:port/database, or rediss:// for TLS. Credentials belong into secretRef."
    )
    mode: Literal["Standalone", "Cluster", "Sentinel"] = Field(
        "Standalone", description="How the servers stand together. Only Standalone is built yet."
    )
    sentinel: Sentinel | None = Field(None, description="The sentinels, with mode Sentinel.")
    secret_ref: SecretRef | None = Field(None, description="A Secret with keys username (optional) and password.")
    tls: Tls | None = Field(None, description="How TLS is done, with a rediss:// url.")


class BrokerConnectionSpec(Model):
    """Exactly one broker."""

    constraints: ClassVar = (
        CelRule(
            "has(self.kafka) != has(self.redis)",
            "exactly one of kafka and redis must be set",
            lambda spec: count_set(spec, "kafka", "redis") == 1,
        ),
    )

    kafka: KafkaConnection | None = Field(None, description="A Kafka cluster.")
    redis: RedisConnection | None = Field(None, description="A Redis server.")

    @property
    def is_redis(self) -> bool:
        """Is it a Redis?"""
        return self.redis is not None

    @property
    def tls(self) -> Tls | None:
        """How TLS is done, whichever broker it is."""
        return self.kafka.tls if self.kafka else self.redis.tls if self.redis else None

    @property
    def secret_keys(self) -> tuple[SecretKeyRef, ...]:
        """Every key of a Secret it cannot do without; a Redis may have no user names."""
        sasl = self.kafka.sasl if self.kafka else None
        login = secret_key_refs(sasl.secret_ref, "username", "password") if sasl else ()
        login = secret_key_refs(self.redis.secret_ref, "password") if self.redis else login
        return login + (self.tls.secret_keys if self.tls else ())

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Every Secret it names, each once."""
        return secret_names(self.secret_keys)


class ServerStatus(StatusModel):
    """Who answered."""

    kind: str | None = Field(None, description="Kafka or Redis.", max_length=16)
    version: str | None = Field(None, description="Version, as the server tells it.", max_length=64)
    brokers: int | None = Field(None, description="Brokers that are up.", ge=0)
    transactions: bool | None = Field(None, description="Can it publish and settle in one transaction?")


class BrokerConnectionStatus(Status):
    """Whether the broker answers."""

    server: ServerStatus | None = Field(None, description="Who answered.")
    queues: int | None = Field(None, description="Queues that use this connection.", ge=0)


class BrokerConnection(CustomResource):
    """Where a Kafka or a Redis is, and how to log in. Queues of the same namespace name it."""

    kind: ClassVar[str] = "BrokerConnection"
    plural: ClassVar[str] = "brokerconnections"
    singular: ClassVar[str] = "brokerconnection"
    short_names: ClassVar[tuple[str, ...]] = ("bkc",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        condition_column("Ready", "Ready"),
        PrinterColumn("Kind", ".status.server.kind", description="Kafka or Redis."),
        PrinterColumn("Server", ".status.server.version", description="Version of the server."),
        PrinterColumn("Queues", ".status.queues", "integer", description="Queues that use it."),
        condition_column("Reason", "Ready", "reason", wide=True),
        AGE,
    )

    spec: BrokerConnectionSpec = Field(description="Where the broker is.")
    status: BrokerConnectionStatus = Field(
        default_factory=BrokerConnectionStatus, description="Whether it answers; written by the operator."
    )
