"""Dialects: the ways in which other systems write the metadata of a dead letter."""
