"""What the four kinds share: metadata, conditions, and how a body becomes a model."""

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
    """A column of `kubectl get`; `wide` ones show with `-o wide` alone."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


def condition_column(name: str, condition: str, part: str = "status", wide: bool = False) -> PrinterColumn:
    """A column that shows one part of a condition."""
    path = f'.status.conditions[?(@.type=="{condition}")].{part}'
    return PrinterColumn(name, path, wide=wide, description=f"The {part} of the condition {condition}.")


# Only what is worth a sentence has a message, and Ready stands first.
REASON_COLUMN = PrinterColumn(
    "Reason",
    '.status.conditions[?(@.message!="")].reason',
    description="Why it is not ready, or what is bad although it is; nothing when all is well.",
)
AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date", description="When it was created.")


class Metadata(StatusModel):
    """What we read of an object's metadata."""

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
    """One thing said about an object: its clock moves only when the status turns."""

    type: str = Field(description="What the condition is about.", max_length=64)
    status: Literal["True", "False", "Unknown"] = Field(description="True, False, or Unknown.")
    reason: str = Field(description="One word for the cause; see the page of reasons.", max_length=128)
    message: str = Field("", description="A sentence for people.", max_length=4096)
    last_transition_time: str = Field(
        description="When the status last turned.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int = Field(0, description="The generation of the spec it speaks of.", ge=0)


class Status(StatusModel):
    """What the operator says about an object."""

    observed_generation: int | None = Field(None, description="The generation of the spec last looked at.", ge=0)
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=16,
        description="What holds and what does not, one entry per type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, if it was ever set."""
        return next((one for one in self.conditions if one.type == kind), None)


class CustomResource(Model):
    """An object of ours as the API server hands it over."""

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
        """The model of a body as kopf or the API gives it."""
        parts = {part: body[part] for part in ("metadata", "spec", "status") if body.get(part) is not None}
        return cls.model_validate({"spec": {}} | parts)

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """What tells it from an object of the same name before or after it."""
        return self.metadata.uid

    @property
    def generation(self) -> int:
        """How often its spec was written."""
        return self.metadata.generation
