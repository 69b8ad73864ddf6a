"""The parsed URL of a service."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from deadletter.workers.delivery.http.errors import TargetForbidden

DEFAULT_PORTS = {"http": 80, "https": 443}
NON_URL_CHARACTER = re.compile(r"[^\x21-\x7e]")


@dataclass(slots=True, frozen=True)
class Url:
    """Where to connect and which path to request."""

    is_secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> "Url":
        """Parse an http or https URL without credentials; TargetForbidden for any other text."""
        if NON_URL_CHARACTER.search(url):
            raise TargetForbidden("the URL contains characters that are not allowed in a URL")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise TargetForbidden("the URL cannot be parsed") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise TargetForbidden("the URL must begin with http:// or https://")
        if "@" in parts.netloc:
            raise TargetForbidden("the URL must not contain credentials")
        if not parts.hostname:
            raise TargetForbidden("the URL has no host")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", parts.hostname, port or DEFAULT_PORTS[parts.scheme], path)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS["https" if self.is_secure else "http"] else f"{host}:{self.port}"
