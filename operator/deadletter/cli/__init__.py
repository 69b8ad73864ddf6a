"""Doors: what a person or a test asks at a terminal, one letter or failure a line."""
