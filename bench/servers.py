"""The servers of a run: PostgreSQL 18 and Valkey 9 from their wheels, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
import redis

from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.ledger import Ledger, migrate

#: What makes a commit survive a crash. A run with anything else would compare nothing that a team can use.
_DURABLE = {"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on"}


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses and process ids; every contestant uses these two, with these settings."""

    database_url: str
    database_tcp_url: str
    redis_url: str
    postgres_pid: int
    valkey_pid: int

    def begin_anew(self, *, migrated: bool = True) -> None:
        """Empties both; the checkpoint is written now, so that nobody pays for what the last one left."""
        with self.connect() as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        with self.client() as client:
            client.flushall()
        if migrated:
            ledger = Ledger(self.database_url)
            migrate(ledger)
            ledger.close()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Writes what is dirty to disk."""
        with self.connect() as connection:
            connection.execute("CHECKPOINT")

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        """A connection that commits by itself."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            yield connection

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A client of the source."""
        with redis.Redis.from_url(self.redis_url) as client:
            yield client

    def ask(self, query: LiteralString, *values: object) -> tuple[int, ...]:
        """The one row that a query has, of whole numbers."""
        with self.connect() as connection:
            row = connection.execute(query, values).fetchone()
        if row is None:
            raise LookupError(query)
        return tuple(int(value or 0) for value in row)

    def versions(self) -> dict[str, str]:
        """What ran, by name."""
        with self.connect() as connection, self.client() as client:
            info = client.info("server")
            return {
                "postgresql": str(connection.info.parameter_status("server_version")),
                "valkey": str(info.get("valkey_version") or info.get("redis_version")),
            }


@contextmanager
def started(folder: Path) -> Iterator[Servers]:
    """Both servers, while they are needed; refuses a PostgreSQL that would lose a commit.

    Valkey keeps nothing on disk here. What a rival keeps in it costs that rival no disk, while every todo does.
    """
    with PostgresServer(folder / "postgres") as postgres, ValkeyServer(folder / "valkey") as valkey:
        servers = Servers(postgres.url, postgres.tcp_url, valkey.url, postgres.pid, valkey.pid)
        with servers.connect() as connection:
            for name, expected in _DURABLE.items():
                row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
                if row != (expected,):
                    raise SystemExit(f"PostgreSQL has {name} = {row and row[0]}, expected {expected}")
        yield servers
