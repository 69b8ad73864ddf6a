"""A real Redis: Debian's redis-server with a port and directory of its own."""

import subprocess
from pathlib import Path

from tests.bed import ports, processes, tools

CONFIG = """\
bind {address}
port {port}
dir {directory}
protected-mode no
daemonize no
set-proc-title no
save ""
appendonly yes
appendfsync everysec
maxmemory-policy noeviction
"""


def start(bed: Path, name: str, address: str, port: int) -> None:
    """Start a Redis that stores its data in the bed and wait until it answers."""
    directory = bed / name
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "redis.conf"
    config.write_text(CONFIG.format(address=address, port=port, directory=directory))
    run(bed, name, config, address, port)


def run(bed: Path, name: str, config: Path, address: str, port: int, *more: str) -> None:
    """Start the server with a configuration file and wait until it answers."""
    tools.need("redis-server", "redis-cli")
    made = processes.start(name, [tools.path("redis-server"), config, *more], bed)
    processes.wait_until("Redis", lambda: _pongs(address, port), 60, made)


def run_command(address: str, port: int, *arguments: str) -> str:
    """Send one command with redis-cli and return the reply."""
    command = [tools.path("redis-cli"), "-h", address, "-p", str(port), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def _pongs(address: str, port: int) -> bool:
    return ports.answers(address, port) and run_command(address, port, "ping") == "PONG"


def url(address: str, port: int) -> str:
    """Return the URL for clients."""
    return f"redis://{address}:{port}/0"
