"""Commands that write generated files; not part of the image."""
