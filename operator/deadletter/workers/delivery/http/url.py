"""The one URL a client posts to, taken apart once."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from deadletter.workers.delivery.http.errors import TargetForbidden

PORTS = {"http": 80, "https": 443}
UNSAFE = re.compile(r"[^\x21-\x7e]")


@dataclass(slots=True, frozen=True)
class Target:
    """Where to connect and what to ask for."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> "Target":
        """The target of an http or https URL without userinfo; anything else is forbidden."""
        if UNSAFE.search(url):
            raise TargetForbidden("the URL holds characters that a URL cannot have")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise TargetForbidden("the URL cannot be read") from None
        if parts.scheme not in PORTS:
            raise TargetForbidden("the URL must begin with http:// or https://")
        if "@" in parts.netloc:
            raise TargetForbidden("the URL must not carry credentials")
        if not parts.hostname:
            raise TargetForbidden("the URL names no host")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", parts.hostname, port or PORTS[parts.scheme], path)

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"
