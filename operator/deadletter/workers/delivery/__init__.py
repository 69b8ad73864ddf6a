"""Delivery of messages to a service: the protocol-neutral contract, and one folder per protocol."""
