"""A small HTTP/1.1 client: keep-alive, TLS, an address guard, and an end to everything a server may do to it."""

from deadletter.workers.delivery.http.client import Client
from deadletter.workers.delivery.http.errors import HttpError
from deadletter.workers.delivery.http.url import Target

__all__ = ["Client", "HttpError", "Target"]
