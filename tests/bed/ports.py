"""Find free ports below the range that the kernel assigns to clients."""

import random
import socket

_MIN_PORT, _MAX_PORT = 20_000, 32_000


def free(address: str, count: int = 1) -> list[int]:
    """Return different ports without a listener on this address or on all addresses."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randint(_MIN_PORT, _MAX_PORT)
        if port not in found and _is_free(address, port) and _is_free("", port):
            found.append(port)
    return found


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def answers(address: str, port: int) -> bool:
    """True if something listens there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
