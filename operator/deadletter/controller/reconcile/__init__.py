"""The reconcilers, one per kind, and the steps that they share."""
