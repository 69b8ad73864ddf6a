"""The environment, read once into one frozen object. Every variable begins with DLQ_."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

NameList = Annotated[tuple[str, ...], NoDecode]
WarnOrDeny = Literal["Warn", "Deny"]


class Settings(BaseSettings):
    """What the chart tells the operator."""

    model_config = SettingsConfigDict(env_prefix="DLQ_", frozen=True, extra="ignore")

    namespaces: NameList = Field((), description="Namespaces to watch; none: all of them.")
    image: str = Field("deadletter.dev/dlq-operator:latest", description="Image of couriers and replays.")
    image_pull_policy: str = Field("IfNotPresent", description="When workers pull the image.")
    image_pull_secrets: NameList = Field((), description="Secrets for pulling the image.")
    version: str = Field("unknown", description="Version of the image, which sets it.")
    log_level: str = Field("info", description="debug, info, warning or error.")
    allow_addresses: NameList = Field((), description="CIDRs that the address guard lets through.")
    secrets_require_label: bool = Field(False, description="Read only Secrets labelled deadletter.dev/readable=true.")
    secrets_grant: str = Field(
        "--clusterrole=<that gets Secrets> --serviceaccount=<the operator's>",
        description="Role and account that a tenant binds to let us read its Secrets.",
    )
    worker_network_policy: bool = Field(False, description="Give each courier and Replay a NetworkPolicy.")
    worker_pod_monitor: bool = Field(False, description="Give each courier a PodMonitor.")

    health_port: int = Field(8080, description="Port of /healthz, /readyz and /metrics.")
    webhook_port: int = Field(9443, description="Port of the webhook.")
    webhook_certificates: Path | None = Field(None, description="Folder with tls.crt and tls.key; none: no webhook.")
    webhook_missing_references: WarnOrDeny = Field("Warn", description="What to say to a missing reference.")
    webhook_delete_in_use: WarnOrDeny = Field("Warn", description="What to say when something in use is deleted.")

    sweep_seconds: float = Field(10.0, gt=0, description="Between two sweeps over all queues.")
    relist_seconds: float = Field(60.0, gt=0, description="Between two lists of every kind.")
    rejudge_seconds: float = Field(300.0, gt=0, description="Within this time everything is judged again.")
    secrets_seconds: float = Field(60.0, gt=0, description="How long a Secret's content is trusted.")
    status_seconds: float = Field(30.0, ge=0, description="Numbers in a status are written at most this often.")
    retry_seconds: float = Field(15.0, gt=0, description="Longest wait for what heals, unless over 300 wait.")
    api_rate: float = Field(100.0, gt=0, description="Requests a second to the API server.")
    api_burst: int = Field(200, gt=0, description="Requests to the API server at once.")
    concurrency: int = Field(32, gt=0, description="Objects reconciled at once.")

    @field_validator("namespaces", "image_pull_secrets", "allow_addresses", mode="before")
    @classmethod
    def split_list(cls, text: object) -> object:
        """A list is written with commas."""
        return tuple(part.strip() for part in text.split(",") if part.strip()) if isinstance(text, str) else text

    @field_validator("allow_addresses")
    @classmethod
    def validate_networks(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Said at the start, not when the first broker is dialled."""
        for address in addresses:
            ip_network(address, strict=False)
        return addresses

    @field_validator("webhook_certificates", mode="before")
    @classmethod
    def unset_if_empty(cls, text: object) -> object:
        """An empty variable is no folder."""
        return text or None
