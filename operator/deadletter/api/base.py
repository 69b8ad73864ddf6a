"""Base models and annotated field types of the API: frozen, camelCase in JSON, validated by CEL rules."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from deadletter.api.cel_rules import CelRule


def _add_rules(schema: dict[str, Any], model: type["Model"]) -> None:
    if model.constraints:
        schema["x-kubernetes-validations"] = [rule.as_schema() for rule in model.constraints]


class Model(BaseModel):
    """Base of the parts of a spec; unknown fields are rejected."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        json_schema_extra=_add_rules,
    )
    constraints: ClassVar[tuple[CelRule, ...]] = ()

    @model_validator(mode="after")
    def check_rules(self) -> Self:
        """Raise the message of the first rule that is not met."""
        for rule in self.constraints:
            if rule.is_met is not None and not rule.is_for_new and not rule.is_met(self):
                raise ValueError(rule.message)
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON that a user would write, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(BaseModel):
    """Base of the parts of a status; fields that a newer operator added are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON as it is stored in the object, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass(frozen=True, slots=True)
class BoundedText:
    """A string of limited length that must match `pattern` as a whole; `message` is the error for users.

    On the API server the pattern is a CEL rule, because a schema's `pattern` has no error message.
    """

    max_length: int
    pattern: str = ""
    message: str = ""
    min_length: int = 1

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        plain = core_schema.str_schema(min_length=self.min_length, max_length=self.max_length)
        return core_schema.no_info_after_validator_function(self.check, plain) if self.pattern else plain

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        out = dict(handler(schema))
        if self.pattern:
            rule = {"rule": f"self.matches({cel_literal(f'^(?:{self.pattern})$')})", "message": self.message}
            out["x-kubernetes-validations"] = [rule]
        return out

    def check(self, text: str) -> str:
        """Return the text; ValueError with the message if it does not match the pattern."""
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.message)
        return text


def cel_literal(text: str) -> str:
    """Return the text as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


PORT = "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"

Int = Annotated[int, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]
Duration = Annotated[
    str,
    BoundedText(28, "(?:[0-9]{1,5}(?:h|m|s|ms)){1,4}", "must be a duration such as 500ms, 30s, 15m or 1h30m"),
]
Time = Annotated[
    str,
    BoundedText(
        35,
        r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
        r"(?:\.[0-9]{1,9})?(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])",
        "must be a time such as 2026-11-16T08:30:00Z",
    ),
]
ObjectName = Annotated[
    str,
    BoundedText(
        253,
        "[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?",
        "must be the name of an object: lower case letters, digits, '-' and '.'",
    ),
]
BoxName = Annotated[
    str,
    BoundedText(
        242,
        r"[A-Za-z0-9_:{-][A-Za-z0-9._:{}/-]*|\.[A-Za-z0-9._:{}/-]*[A-Za-z0-9_:{}/-][A-Za-z0-9._:{}/-]*|\.{3,}",
        "must be the name of a topic or stream: letters, digits, '.', '_', '-' (on Redis also ':', '/', '{', '}'), "
        "not '.' or '..'",
    ),
]
HeaderName = Annotated[
    str,
    BoundedText(
        128, "[!#$%&'*+.^_`|~0-9A-Za-z-]+", "must be a header name: letters, digits and any of !#$%&'*+-.^_`|~"
    ),
]
_ASCII = r"[ -~\n\t]+"
_ASCII_MESSAGE = r"must be a CEL expression in ASCII; write other characters in string literals as \u escapes"
Expression = Annotated[str, BoundedText(2048, _ASCII, _ASCII_MESSAGE)]
ShortExpression = Annotated[str, BoundedText(1024, _ASCII, _ASCII_MESSAGE)]


class NameRef(Model):
    """Reference to an object in the same namespace."""

    name: Annotated[ObjectName, Field(description="Name of the object, in the same namespace.")]


class SecretRef(Model):
    """Reference to a Secret in the same namespace; the referencing field defines its keys."""

    name: Annotated[ObjectName, Field(description="Name of the Secret, in the same namespace.")]


class SecretKeyRef(Model):
    """Reference to one key of a Secret in the same namespace."""

    name: Annotated[ObjectName, Field(description="Name of the Secret, in the same namespace.")]
    key: Annotated[
        str,
        BoundedText(253, "[-._a-zA-Z0-9]+", "must be a key of a Secret: letters, digits, '-', '_' and '.'"),
        Field(description="Key in the Secret."),
    ]


class Tls(Model):
    """Settings of a TLS connection."""

    ca_secret_ref: SecretKeyRef | None = Field(
        None,
        description="Secret key with the CA certificates to trust, in PEM. The CA certificates of the image if unset.",
    )
    client_secret_ref: SecretRef | None = Field(
        None,
        description="Secret with the client certificate in tls.crt and its key in tls.key. No client certificate if "
        "unset.",
    )
    insecure_skip_verify: Bool = Field(False, description="Accept any server certificate. Use it for tests only.")

    @property
    def secret_keys(self) -> tuple[SecretKeyRef, ...]:
        """All Secret keys that the TLS settings reference."""
        ca_keys = (self.ca_secret_ref,) if self.ca_secret_ref else ()
        return (*ca_keys, *secret_key_refs(self.client_secret_ref, "tls.crt", "tls.key"))


def secret_key_refs(secret: SecretRef | None, *keys: str) -> tuple[SecretKeyRef, ...]:
    """Return references to these keys of the Secret; empty without a Secret."""
    return tuple(SecretKeyRef(name=secret.name, key=key) for key in keys) if secret else ()


def secret_names(keys: Iterable[SecretKeyRef]) -> tuple[str, ...]:
    """Return the names of the Secrets of these keys, without duplicates."""
    return tuple(dict.fromkeys(key.name for key in keys))
