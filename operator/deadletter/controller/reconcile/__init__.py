"""The reconcilers, one for each kind, and the steps that they share."""
