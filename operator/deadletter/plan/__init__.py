"""Facts in, findings, manifests and status out; pure."""
