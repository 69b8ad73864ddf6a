"""Decide from facts what is wrong, what should exist and what the status says. Nothing here does I/O."""
