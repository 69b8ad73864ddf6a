"""A working broker in dicts, for tests of the upper floors and for a first look without a server.

server = MemoryServer(clock)            # what survives a restart
broker = MemoryBroker(server)           # one connection; open as many as there are processes
server.refuse["orders.dlq"] = BoxRefused("full")   # every write to that box fails until it is taken away
"""

from deadletter.brokers.memory.broker import MemoryBroker
from deadletter.brokers.memory.server import MemoryServer

__all__ = ["MemoryBroker", "MemoryServer"]
