"""Addresses that may be dialled, TLS contexts and Secret files: shared by brokers and workers."""
