"""A Redis primary with one replica, watched by three Sentinels: any of the five can be killed and started again."""

import signal
from dataclasses import dataclass
from pathlib import Path

from tests.bed import processes, redis

PRIMARY = "primary"  # the name by which the Sentinels know the primary, whichever server it is
SERVERS = (1, 2)
SENTINELS = (1, 2, 3)
PORTS = len(SERVERS) + len(SENTINELS)
TIMEOUT_S = 60.0
REPLICATED = "repl-diskless-sync-delay 0\n"
REPLICA = "replicaof {address} {primary}\n"
SENTINEL = """\
bind {address}
port {port}
dir {directory}
protected-mode no
daemonize no
sentinel monitor primary {address} {primary} 2
sentinel down-after-milliseconds primary 5000
sentinel failover-timeout primary 6000
"""


def programs(name: str) -> tuple[str, ...]:
    """Return the names of its processes."""
    return (*(_server(name, one) for one in SERVERS), *(_sentinel(name, one) for one in SENTINELS))


@dataclass(frozen=True)
class RedisSentinel:
    """The servers 1 and 2, of which 1 is the primary at first, and the Sentinels 1 to 3."""

    bed: Path
    name: str
    address: str
    ports: tuple[int, ...]

    @property
    def sentinels(self) -> list[str]:
        """The addresses of the Sentinels."""
        return [f"{self.address}:{port}" for port in self.ports[len(SERVERS) :]]

    @property
    def primary(self) -> int:
        """The server that most Sentinels call the primary."""
        answers = [self._ask_for_primary(port) for port in self.ports[len(SERVERS) :]]
        return max(SERVERS, key=lambda one: answers.count(self.ports[one - 1]))

    @property
    def url(self) -> str:
        """The URL of the present primary."""
        return redis.url(self.address, self.ports[self.primary - 1])

    def kill(self, server: int, sign: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a server; after SIGKILL return when it has ended."""
        found = processes.find_of_bed(self.bed, _server(self.name, server))
        processes.kill(found) if sign == signal.SIGKILL else processes.send(found, sign)

    def start(self, server: int) -> None:
        """Start a server; Redis and Sentinel have stored its role in its configuration file."""
        self._run(_server(self.name, server), self.ports[server - 1])

    def heal(self) -> None:
        """Start or resume both servers and wait until the replica follows the primary."""
        for server in SERVERS:
            alive = processes.find_of_bed(self.bed, _server(self.name, server))
            processes.send(alive, signal.SIGCONT) if alive else self.start(server)
        self.wait_replicated()

    def wait_replicated(self) -> None:
        """Wait until the primary has its replica and every Sentinel knows both and the other Sentinels."""
        processes.wait_until("Redis with Sentinel", self._is_whole, TIMEOUT_S)

    def start_all(self) -> None:
        """Start servers and Sentinels."""
        for one in SERVERS:
            role = REPLICATED if one == SERVERS[0] else REPLICATED + REPLICA
            self._begin(_server(self.name, one), self.ports[one - 1], redis.CONFIG + role)
        for one in SENTINELS:
            self._begin(_sentinel(self.name, one), self.ports[len(SERVERS) + one - 1], SENTINEL)
        self.wait_replicated()

    def _begin(self, program: str, port: int, template: str) -> None:
        directory = self._config(program).parent
        directory.mkdir(parents=True, exist_ok=True)
        text = template.format(address=self.address, port=port, directory=directory, primary=self.ports[0])
        self._config(program).write_text(text)
        self._run(program, port)

    def _run(self, program: str, port: int) -> None:
        more = [] if port in self.ports[: len(SERVERS)] else ["--sentinel"]
        redis.run(self.bed, program, self._config(program), self.address, port, *more)

    def _config(self, program: str) -> Path:
        return self.bed / self.name / program / "redis.conf"

    def _ask_for_primary(self, port: int) -> int:
        reply = redis.run_command(self.address, port, "sentinel", "get-master-addr-by-name", PRIMARY).split()
        return int(reply[1]) if len(reply) == 2 and reply[1].isdigit() else 0

    def _is_whole(self) -> bool:
        server = redis.run_command(self.address, self.ports[self.primary - 1], "info", "replication")
        if "role:master" not in server or "state=online" not in server:
            return False
        watching = [redis.run_command(self.address, port, "info", "sentinel") for port in self.ports[len(SERVERS) :]]
        return all("status=ok" in one and "slaves=1,sentinels=3" in one for one in watching)


def start(bed: Path, name: str, address: str, *ports: int) -> None:
    """Start the servers and Sentinels of a bed and wait until they know each other."""
    RedisSentinel(bed, name, address, ports).start_all()


def _server(name: str, number: int) -> str:
    return f"{name}-server-{number}"


def _sentinel(name: str, number: int) -> str:
    return f"{name}-{number}"
