"""Find the primary of a Redis through its Sentinels."""

from collections.abc import Callable

from redis.asyncio import Connection
from redis.exceptions import RedisError

from deadletter.api.broker_connections import Sentinel
from deadletter.brokers.errors import BrokerError, BrokerUnreachable
from deadletter.brokers.redis.errors import translate

Address = tuple[str, int]


class PrimaryLocator:
    """Asks the Sentinels for the address of the primary, before every new connection to it."""

    def __init__(self, sentinel: Sentinel, make_connection: Callable[[str, int], Connection]) -> None:
        self._name, self._make_connection = sentinel.master_name, make_connection
        self._nodes = [_parse(node) for node in sentinel.nodes]

    async def locate(self) -> Address:
        """Return the address that the first Sentinel names that knows the primary.

        A Sentinel that answered is asked first the next time. If none does, the last error is raised that is more than
        a Sentinel that does not answer.
        """
        errors: list[BrokerError] = []
        for node in list(self._nodes):
            try:
                found = await self._ask(node)
            except (RedisError, OSError) as error:
                errors.append(translate(error))
                continue
            if found is not None:
                self._nodes.sort(key=lambda other: other != node)
                return found
            errors.append(BrokerUnreachable(f"the Sentinels know no primary {self._name}; correct sentinel.masterName"))
        raise max(errors, key=_relevance)

    async def _ask(self, node: Address) -> Address | None:
        connection = self._make_connection(*node)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            reply = await connection.read_response()
        finally:
            await connection.disconnect()
        return (reply[0].decode(), int(reply[1])) if reply else None


def _relevance(error: BrokerError) -> tuple[bool, bool]:
    return not error.is_connection_problem, "masterName" in str(error)


def _parse(node: str) -> Address:
    host, _, port = node.rpartition(":")
    return host.strip("[]"), int(port)
