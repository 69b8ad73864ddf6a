"""End-to-end tests: the operator in a real cluster, installed with Helm."""
