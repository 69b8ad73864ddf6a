"""The boxes of one queue by their names."""

from pydantic import BaseModel, ConfigDict


class Boxes(BaseModel):
    """What a queue reads and writes; None: it has no such box."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str | None = None
    dead: str
    retry: str | None = None
    ledger: str

    @property
    def all(self) -> tuple[str, ...]:
        """Every name, the source's too."""
        return tuple(name for name in (self.source, self.retry, self.dead, self.ledger) if name)
