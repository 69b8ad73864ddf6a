"""Pure values and decisions about letters, without I/O and without a clock."""
