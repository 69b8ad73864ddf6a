"""The core, tried in tables and properties."""
