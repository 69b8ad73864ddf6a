"""Commands for a terminal or a test: decode letters, evaluate a policy, list and show open letters."""
