"""Free ports, below the range the kernel hands out to clients."""

import random
import socket

_LOWEST, _HIGHEST = 20_000, 32_000


def free(address: str, count: int = 1) -> list[int]:
    """Different ports nobody listens on, at this address or, for those who listen everywhere, at any."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randint(_LOWEST, _HIGHEST)
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
    """Whether something listens there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
