"""Dialects: how other systems write an envelope, and how it is read."""
