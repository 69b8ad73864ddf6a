"""A working broker in memory, for tests of the layers above and for trying things out without a server.

server = MemoryServer(clock)            # the state, which survives a restart of a client
broker = MemoryBroker(server)           # one connection; open one for each process
server.refuse["orders.dlq"] = BoxRefused("full")   # every write to this box fails until the entry is removed
"""

from deadletter.brokers.memory.broker import MemoryBroker
from deadletter.brokers.memory.server import MemoryServer

__all__ = ["MemoryBroker", "MemoryServer"]
