"""Delivery by HTTP/1.1: a pooling client with TLS and an address guard that bounds everything a server may send."""
