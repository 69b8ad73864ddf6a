"""The docs are true: every link, manifest, command and printed sample."""
