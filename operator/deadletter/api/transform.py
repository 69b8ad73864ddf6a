"""Transform that a Replay applies to the messages it sends."""

import re
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from deadletter.api.base import BoundedText, Model, cel_literal
from deadletter.api.cel_rules import CelRule

MAX_VALUE_BYTES = 2048
HEADER = "[!-~]{1,128}"
POINTER = r"(?:/(?:[ -.0-}]|~[01])*)*"

Pointer = Annotated[str, BoundedText(256, POINTER, "must be a JSON pointer such as /currency", min_length=0)]
MessageHeader = Annotated[str, BoundedText(128, HEADER, "must be a header name: ASCII without spaces")]


class AnyJson:
    """Any JSON value of limited size."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, core_schema.any_schema())

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "x-kubernetes-preserve-unknown-fields": True,
            "maxLength": MAX_VALUE_BYTES,
            "maxItems": 64,
            "maxProperties": 64,
        }

    def check(self, value: Any) -> Any:
        """Return the value; ValueError if it is too long."""
        if len(orjson.dumps(value)) > MAX_VALUE_BYTES:
            raise ValueError(f"value must not be longer than {MAX_VALUE_BYTES} bytes")
        return value


class JsonPatchOperation(Model):
    """One operation of a JSON Patch (RFC 6902)."""

    constraints: ClassVar = (
        CelRule(
            "(self.op in ['move', 'copy']) == has(self.from)",
            "from must be set if and only if op is move or copy",
            lambda patch: (patch.op in {"move", "copy"}) == (patch.from_ is not None),
            "from",
        ),
    )

    op: Literal["add", "remove", "replace", "move", "copy", "test"] = Field(description="Operation to apply.")
    path: Annotated[Pointer, Field(description="JSON pointer to the target of the operation.")]
    from_: Pointer | None = Field(
        None, alias="from", description="JSON pointer to the source; required with move and copy."
    )
    value: Annotated[Any, AnyJson()] = Field(
        None, description="Value for add, replace and test, as any JSON. Null if unset."
    )


class TransformSpec(Model):
    """Headers to set and to remove, and a JSON Patch for the value."""

    constraints: ClassVar = (
        CelRule(
            f"!has(self.setHeaders) || self.setHeaders.all(k, size(k) <= 128 && "
            f"k.matches({cel_literal(f'^{HEADER}$')}))",
            "setHeaders must have header names as keys: ASCII without spaces, at most 128 characters",
            lambda spec: all(re.fullmatch(HEADER, name) is not None for name in spec.set_headers),
            "setHeaders",
        ),
    )

    set_headers: dict[str, Annotated[str, BoundedText(512, min_length=0)]] = Field(
        default_factory=dict, max_length=16, description="Headers to set; existing ones are replaced. None if unset."
    )
    remove_headers: tuple[MessageHeader, ...] = Field(
        (), max_length=32, description="Names of headers to remove. None if unset."
    )
    json_patch: tuple[JsonPatchOperation, ...] = Field(
        (),
        max_length=16,
        description="JSON Patch (RFC 6902) for the value. Letters that it does not apply to are skipped with reason "
        "TransformError. No patch if unset.",
    )
