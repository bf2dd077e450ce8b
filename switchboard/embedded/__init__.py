"""PostgreSQL 18 and Valkey 9 started from wheels, for `switchboard demo` and the tests.

Production never starts a server by itself. Both servers listen on 127.0.0.1 (PostgreSQL on a Unix socket as well) and
ask for no password: anyone on the machine may connect while they run.
"""

from .errors import EmbeddedFailed, EmbeddedUnavailable
from .postgres import PostgresServer
from .server import free_port
from .valkey import ValkeyServer

__all__ = ["EmbeddedFailed", "EmbeddedUnavailable", "PostgresServer", "ValkeyServer", "free_port"]
