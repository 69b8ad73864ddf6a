"""The four custom resources and the configuration of the workers, as pydantic models."""
