"""Base of the four custom resources: metadata, conditions and printer columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from deadletter.api.base import Model, StatusModel

GROUP = "deadletter.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "deadletters"


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of `kubectl get`; `wide` columns appear only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


def condition_column(name: str, condition: str, part: str = "status", wide: bool = False) -> PrinterColumn:
    """Return a column that shows one part of a condition."""
    path = f'.status.conditions[?(@.type=="{condition}")].{part}'
    return PrinterColumn(name, path, wide=wide, description=f"The {part} of the condition {condition}.")


# Conditions in their expected state have no message, and Ready is the first condition.
REASON_COLUMN = PrinterColumn(
    "Reason",
    '.status.conditions[?(@.message!="")].reason',
    description="Reason of the first condition that needs attention; empty if there is none.",
)
AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date", description="Time since creation.")


class Metadata(StatusModel):
    """The metadata of an object, as far as the operator reads it."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()


class Condition(StatusModel):
    """A condition of an object; `lastTransitionTime` changes only with the status."""

    type: str = Field(description="Type of the condition.", max_length=64)
    status: Literal["True", "False", "Unknown"] = Field(description="True, False, or Unknown.")
    reason: str = Field(description="Cause of the status, one of the documented reasons.", max_length=128)
    message: str = Field("", description="Details for a person. Empty if the status is as expected.", max_length=4096)
    last_transition_time: str = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int = Field(0, description="Generation of the spec that the condition is about.", ge=0)


class Status(StatusModel):
    """Base of the status of an object."""

    observed_generation: int | None = Field(
        None, description="Generation of the spec that the operator processed last.", ge=0
    )
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=16,
        description="Current conditions, one per type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of this type; None if it was never set."""
        return next((one for one in self.conditions if one.type == type_), None)


class CustomResource(Model):
    """Base of the four kinds, validated from the JSON of the API server."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: ClassVar[str]
    plural: ClassVar[str]
    singular: ClassVar[str]
    short_names: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[PrinterColumn, ...]]
    selectable: ClassVar[tuple[str, ...]] = ()
    scale: ClassVar[Mapping[str, str]] = {}

    metadata: Metadata

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Return the model of an object in JSON, as kopf or the API server returns it."""
        parts = {part: body[part] for part in ("metadata", "spec", "status") if body.get(part) is not None}
        return cls.model_validate({"spec": {}} | parts)

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """Unique id, which differs for an object that is deleted and created again."""
        return self.metadata.uid

    @property
    def generation(self) -> int:
        """Generation of the spec, which the API server increments on each change."""
        return self.metadata.generation
