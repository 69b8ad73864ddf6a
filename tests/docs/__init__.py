"""Tests that the docs are correct: every link, manifest, command and printed sample."""
