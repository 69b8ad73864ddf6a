"""Settings of the operator, read once from environment variables that start with DLQ_."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

NameList = Annotated[tuple[str, ...], NoDecode]
WarnOrDeny = Literal["Warn", "Deny"]


class Settings(BaseSettings):
    """Settings of the operator; the chart sets most of them."""

    model_config = SettingsConfigDict(env_prefix="DLQ_", frozen=True, extra="ignore")

    namespaces: NameList = Field((), description="Namespaces to watch; all if empty.")
    image: str = Field("deadletter.dev/dlq-operator:latest", description="Image of couriers, redrivers and Replays.")
    image_pull_policy: str = Field("IfNotPresent", description="Pull policy of the image of workers.")
    image_pull_secrets: NameList = Field((), description="Secrets with the credentials for pulling the image.")
    version: str = Field("unknown", description="Version of the operator; the image sets it.")
    log_level: str = Field("info", description="Lowest level that is logged: debug, info, warning or error.")
    allow_addresses: NameList = Field(
        (), description="CIDRs that may be dialled although the address guard forbids them."
    )
    secrets_require_label: bool = Field(
        False, description="Read only Secrets with the label deadletter.dev/readable=true."
    )
    secrets_grant: str = Field(
        "--clusterrole=<that gets Secrets> --serviceaccount=<the operator's>",
        description="Role and account that a tenant binds so that the operator may read its Secrets.",
    )
    worker_network_policy: bool = Field(False, description="Create a NetworkPolicy for each courier and Replay.")
    worker_pod_monitor: bool = Field(False, description="Create a PodMonitor for each courier.")

    health_port: int = Field(8080, description="Port of /healthz, /readyz and /metrics.")
    webhook_port: int = Field(9443, description="Port of the admission webhook.")
    webhook_certificates: Path | None = Field(None, description="Folder with tls.crt and tls.key; no webhook if empty.")
    webhook_missing_references: WarnOrDeny = Field(
        "Warn", description="Answer of the webhook to a reference to a missing object."
    )
    webhook_delete_in_use: WarnOrDeny = Field(
        "Warn", description="Answer of the webhook to the deletion of an object in use."
    )

    sweep_seconds: float = Field(10.0, gt=0, description="Seconds between two sweeps over all queues.")
    relist_seconds: float = Field(60.0, gt=0, description="Seconds between two full lists of every kind.")
    rejudge_seconds: float = Field(
        300.0, gt=0, description="Every object is reconciled at least once in this many seconds."
    )
    secrets_seconds: float = Field(60.0, gt=0, description="Seconds until a cached Secret is read again.")
    status_seconds: float = Field(
        30.0, ge=0, description="Least seconds between two status writes that change only numbers."
    )
    retry_seconds: float = Field(
        15.0, gt=0, description="Longest seconds between retries of a transient error; more if over 300 objects wait."
    )
    api_rate: float = Field(100.0, gt=0, description="Requests per second to the API server.")
    api_burst: int = Field(200, gt=0, description="Requests to the API server that may be sent in one burst.")
    concurrency: int = Field(32, gt=0, description="Objects reconciled concurrently.")

    @field_validator("namespaces", "image_pull_secrets", "allow_addresses", mode="before")
    @classmethod
    def split_list(cls, text: object) -> object:
        """Split a list at its commas."""
        return tuple(part.strip() for part in text.split(",") if part.strip()) if isinstance(text, str) else text

    @field_validator("allow_addresses")
    @classmethod
    def validate_networks(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse an invalid network at the start, not when the first broker is dialled."""
        for address in addresses:
            ip_network(address, strict=False)
        return addresses

    @field_validator("webhook_certificates", mode="before")
    @classmethod
    def unset_if_empty(cls, text: object) -> object:
        """Treat an empty variable as unset."""
        return text or None
