"""What every model shares: frozen, camelCase on the wire, nothing unknown, rules judged after the fields."""

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
    """A part of a spec."""

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
        """The first rule that does not hold is the error."""
        for rule in self.constraints:
            if rule.is_met is not None and not rule.is_met(self):
                raise ValueError(rule.message)
        return self

    def to_wire(self) -> dict[str, Any]:
        """The JSON a user would write, without what is not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(BaseModel):
    """A part of a status: what a newer operator added to it is not our business."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def to_wire(self) -> dict[str, Any]:
        """The JSON as it stands in the object, without what is not known."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass(frozen=True, slots=True)
class BoundedText:
    """A bounded string; `pattern` holds for the whole of it, and `sentence` says so to a user.

    The pattern is a CEL rule on the API server, because a schema's `pattern` cannot speak.
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
        """The text itself, or the sentence."""
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.message)
        return text


def cel_literal(text: str) -> str:
    """A CEL string literal."""
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
_ASCII_SENTENCE = r"must be a CEL expression in ASCII; write other characters as \u escapes in its texts"
Expression = Annotated[str, BoundedText(2048, _ASCII, _ASCII_SENTENCE)]
ShortExpression = Annotated[str, BoundedText(1024, _ASCII, _ASCII_SENTENCE)]


class NameRef(Model):
    """An object of the same namespace."""

    name: Annotated[ObjectName, Field(description="Name of the object, in the same namespace.")]


class SecretRef(Model):
    """A Secret of the same namespace, whose keys are fixed by where it is used."""

    name: Annotated[ObjectName, Field(description="Name of the Secret, in the same namespace.")]


class SecretKeyRef(Model):
    """One key of a Secret of the same namespace."""

    name: Annotated[ObjectName, Field(description="Name of the Secret, in the same namespace.")]
    key: Annotated[
        str,
        BoundedText(253, "[-._a-zA-Z0-9]+", "must be a key of a Secret: letters, digits, '-', '_' and '.'"),
        Field(description="Key in the Secret."),
    ]


class Tls(Model):
    """How a TLS connection is made."""

    ca_secret_ref: SecretKeyRef | None = Field(
        None, description="The certificate authority to trust, in PEM. Absent: those of the system."
    )
    client_secret_ref: SecretRef | None = Field(
        None, description="Our own certificate: a Secret with keys tls.crt and tls.key."
    )
    insecure_skip_verify: Bool = Field(
        False, description="Do not check the other side's certificate. For experiments only."
    )

    @property
    def secret_keys(self) -> tuple[SecretKeyRef, ...]:
        """Every key of a Secret it takes."""
        authority = (self.ca_secret_ref,) if self.ca_secret_ref else ()
        return (*authority, *secret_key_refs(self.client_secret_ref, "tls.crt", "tls.key"))


def secret_key_refs(secret: SecretRef | None, *keys: str) -> tuple[SecretKeyRef, ...]:
    """The fixed keys of a Secret, if one is named."""
    return tuple(SecretKeyRef(name=secret.name, key=key) for key in keys) if secret else ()


def secret_names(keys: Iterable[SecretKeyRef]) -> tuple[str, ...]:
    """The Secrets of these keys, each once."""
    return tuple(dict.fromkeys(key.name for key in keys))
