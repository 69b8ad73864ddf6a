"""Delivery section of a queue: how the courier sends messages to the user's service."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from deadletter.api.base import (
    HOST,
    PORT,
    BoundedText,
    Duration,
    HeaderName,
    Int,
    Model,
    SecretKeyRef,
    Tls,
    cel_literal,
)
from deadletter.api.cel_rules import CelRule, count_set
from deadletter.core import durations

HTTP_URL = rf"https?://{HOST}(?::{PORT})?(?:[/?][!-~]*)?"
STATUSES = "[2-5][0-9]{2}(?:-[2-5][0-9]{2})?"
RESERVED_HEADERS = ("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect")

UrlPath = Annotated[
    str, BoundedText(512, '/[!-"$-~]*', "must begin with '/' and be plain ASCII without spaces or '#'"), Field()
]


class IntOrString:
    """An integer or a string, as Kubernetes writes quantities and ports."""

    def __init__(self, pattern: str, message: str, minimum: int, maximum: int, max_length: int = 32) -> None:
        self.pattern, self.message, self.minimum, self.maximum, self.max_length = (
            pattern,
            message,
            minimum,
            maximum,
            max_length,
        )

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value)
        )

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = f"self >= {self.minimum} && self <= {self.maximum}"
        text = f"string(self).matches({cel_literal(f'^(?:{self.pattern})$')})"
        rule = {"rule": f"type(self) == int ? {number} : {text}", "message": self.message}
        return {"x-kubernetes-int-or-string": True, "maxLength": self.max_length, "x-kubernetes-validations": [rule]}

    def check(self, value: object) -> int | str:
        """Return the value; ValueError with the message if it is invalid."""
        if isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum:
            return value
        if isinstance(value, str) and len(value) <= self.max_length and re.fullmatch(self.pattern, value):
            return value
        raise ValueError(self.message)


StatusRange = Annotated[
    int | str, IntOrString(STATUSES, 'must be a status such as 204, or a range such as "200-299"', 200, 599, 7)
]
Quantity = Annotated[
    int | str,
    IntOrString(
        r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?",
        "must be a quantity such as 100m, 2 or 64Mi",
        0,
        1 << 50,
    ),
]


class ServiceRef(Model):
    """Reference to a Service in the same namespace."""

    name: Annotated[
        str,
        BoundedText(
            63, "[a-z](?:[-a-z0-9]*[a-z0-9])?", "must be the name of a Service: lower case letters, digits and '-'"
        ),
        Field(description="Name of the Service, in the same namespace."),
    ]
    port: Int = Field(80, ge=1, le=65535, description="Port of the Service.")
    path: UrlPath = Field("/", description="Path of the request.")

    def url(self, namespace: str, tls: bool = False) -> str:
        """Return the URL of the Service inside the cluster."""
        return f"{'https' if tls else 'http'}://{self.name}.{namespace}.svc:{self.port}{self.path}"


class ValueFrom(Model):
    """Source of a secret value."""

    secret_key_ref: SecretKeyRef = Field(description="Key of a Secret that holds the value.")


class HttpHeader(Model):
    """Request header with a plain or a secret value."""

    constraints: ClassVar = (
        CelRule(
            "has(self.value) != has(self.valueFrom)",
            "exactly one of value and valueFrom must be set",
            lambda header: count_set(header, "value", "value_from") == 1,
        ),
        CelRule(
            f"!(self.name.lowerAscii() in {list(RESERVED_HEADERS)})",
            f"name must not be a header that the courier sets itself: {', '.join(RESERVED_HEADERS)}",
            lambda header: header.name.lower() not in RESERVED_HEADERS,
            "name",
        ),
    )

    name: Annotated[HeaderName, Field(description="Name of the header.")]
    value: Annotated[str, BoundedText(1024, "[ -~]*", "must be plain ASCII on one line", min_length=0)] | None = Field(
        None, description="Value in plain text. Use valueFrom for a secret value."
    )
    value_from: ValueFrom | None = Field(None, description="Secret that holds the value.")


class HttpDelivery(Model):
    """HTTP delivery: one request for each message."""

    constraints: ClassVar = (
        CelRule(
            "has(self.serviceRef) != has(self.url)",
            "exactly one of serviceRef and url must be set",
            lambda http: count_set(http, "service_ref", "url") == 1,
        ),
        CelRule(
            "!has(self.url) || !self.url.contains('@')",
            "url must not contain credentials: send them in a header with valueFrom.secretKeyRef",
            lambda http: http.url is None or "@" not in http.url,
            "url",
        ),
        CelRule(
            f"!has(self.url) || self.url.contains('@') || self.url.matches({cel_literal(f'^{HTTP_URL}$')})",
            "url must begin with http:// or https:// and a host",
            lambda http: http.url is None or "@" in http.url or re.fullmatch(HTTP_URL, http.url) is not None,
            "url",
        ),
        CelRule(
            "!has(self.tls) || !has(self.url) || self.url.startsWith('https:')",
            "tls requires a url that begins with https://",
            lambda http: http.tls is None or http.url is None or http.url.startswith("https:"),
            "tls",
        ),
    )

    service_ref: ServiceRef | None = Field(
        None, description="Service in the same namespace to deliver to. Set either serviceRef or url."
    )
    url: Annotated[str, BoundedText(1024)] | None = Field(
        None, description="http:// or https:// address to deliver to. Set either serviceRef or url."
    )
    method: Literal["POST", "PUT", "PATCH"] = Field("POST", description="HTTP method of the request.")
    headers: tuple[HttpHeader, ...] = Field(
        (), max_length=16, description="Headers added to every request. None if unset."
    )
    success: tuple[StatusRange, ...] = Field(
        ("200-299",),
        min_length=1,
        max_length=16,
        description="HTTP statuses that mean success, as numbers or as ranges in text.",
    )
    forward_headers: tuple[
        Annotated[
            str,
            BoundedText(
                128, r"(?:[!#$%&'+.^_`|~0-9A-Za-z-]+\*?|\*)", "must be a header name, optionally with a trailing '*'"
            ),
        ],
        ...,
    ] = Field(
        (),
        max_length=32,
        description="Message headers to forward as request headers; `ce_*` forwards all with this prefix. None if "
        "unset.",
    )
    tls: Tls | None = Field(
        None,
        description="TLS settings; with serviceRef they also select https. If unset, a serviceRef is called by http.",
    )

    def request_url(self, namespace: str) -> str:
        """Return the URL that the courier calls."""
        if self.service_ref is not None:
            return self.service_ref.url(namespace, self.tls is not None)
        return self.url or ""

    @property
    def secret_keys(self) -> tuple[SecretKeyRef, ...]:
        """All Secret keys that the headers and the TLS settings reference."""
        header_keys = tuple(header.value_from.secret_key_ref for header in self.headers if header.value_from)
        return header_keys + (self.tls.secret_keys if self.tls else ())

    def is_success(self, status: int) -> bool:
        """True if this status means success."""
        return any(first <= status <= last for first, last in self.success_ranges)

    @property
    def success_ranges(self) -> tuple[tuple[int, int], ...]:
        """Ranges of statuses that mean success, first and last included."""
        parts = (str(one).partition("-") for one in self.success)
        return tuple((int(first), int(last or first)) for first, _, last in parts)


def _only_cpu_and_memory(field: str) -> CelRule:
    cel = f"!has(self.{field}) || self.{field}.all(k, k in ['cpu', 'memory'])"
    return CelRule(
        cel,
        f"{field} must contain only cpu and memory",
        lambda part: set(getattr(part, field)) <= {"cpu", "memory"},
        field,
    )


class Resources(Model):
    """Resource requests and limits of the courier's container."""

    constraints: ClassVar = (_only_cpu_and_memory("requests"), _only_cpu_and_memory("limits"))

    requests: dict[str, Quantity] = Field(
        default_factory=dict, max_length=2, description="Requested cpu and memory. None if unset."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict, max_length=2, description="Maximum cpu and memory. None if unset."
    )


class Delivery(Model):
    """How the courier delivers messages."""

    http: HttpDelivery = Field(description="Delivery by HTTP.")
    concurrency: Int = Field(64, ge=1, le=256, description="Maximum number of concurrent requests of each pod.")
    ordering: Literal["Key", "None"] = Field(
        "Key",
        description="Key: messages with the same key are delivered one after the other, until one is parked or buried. "
        "None: no order.",
    )
    inline_limit: Duration = Field(
        "30s",
        description="Maximum total wait of a message for retries in memory; for longer waits it is parked in the "
        "retry box.",
    )
    replicas: Int = Field(
        1,
        ge=0,
        le=1000,
        description="Number of courier pods. Autoscalers can set it through /scale, which responds with 500 for a "
        "queue "
        "without delivery.",
    )
    resources: Resources | None = Field(
        None,
        description="Resource requests and limits of the courier's container. If unset, it requests 50m cpu "
        "and 64Mi memory, and its memory is limited to 256Mi.",
    )

    @property
    def inline_limit_ms(self) -> int:
        """Inline limit in milliseconds."""
        return durations.parse(self.inline_limit)
