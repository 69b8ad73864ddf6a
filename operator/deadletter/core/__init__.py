"""The language of the product: pure values and decisions, no I/O, no clock of its own."""
