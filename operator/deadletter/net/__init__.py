"""Checks of dialled addresses, TLS contexts and Secrets, shared by brokers and workers."""
