"""Delivery of one message to a service, by protocol."""
