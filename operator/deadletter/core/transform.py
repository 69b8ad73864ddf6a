"""Apply the transform of a Replay to a message: headers and a JSON Patch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jsonpatch

from deadletter.core.letters import Message


class TransformError(ValueError):
    """The transform does not fit this message; the text contains no part of the message."""


@dataclass(frozen=True)
class Transform:
    """Headers to remove and set, and a JSON Patch for the value; key and unpatched values keep their bytes."""

    set_headers: Mapping[str, str] = field(default_factory=dict)
    remove_headers: Sequence[str] = ()
    json_patch: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def _patch(self) -> Any:
        try:
            return jsonpatch.JsonPatch([dict(step) for step in self.json_patch])
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
            raise TransformError("the JSON Patch is not valid") from error

    def apply(self, message: Message) -> Message:
        """Return the transformed message."""
        value = self._patched(self._patch, message.value) if self.json_patch else message.value
        return replace(message, value=value, headers=self._headers(message))

    def _headers(self, message: Message) -> tuple[tuple[str, bytes | None], ...]:
        replaced = {*self.remove_headers, *self.set_headers}
        kept = tuple(header for header in message.headers if header[0] not in replaced)
        return kept + tuple((name, value.encode()) for name, value in self.set_headers.items())

    @staticmethod
    def _patched(patch: Any, value: bytes | None) -> bytes:
        if value is None:
            raise TransformError("the message has no value to patch")
        try:
            # The standard library keeps integers of any size; other JSON parsers turn them into floats.
            document = json.loads(value)
        except (ValueError, RecursionError):
            raise TransformError("the value is not JSON") from None
        try:
            changed = patch.apply(document)
            return json.dumps(changed, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, ValueError, TypeError, RecursionError):
            raise TransformError("the JSON Patch does not apply to this value") from None
