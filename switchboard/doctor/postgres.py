"""PostgreSQL: whether it can be reached, keeps what it is given, and has the schema and the rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial

from ..errors import ConfigError, LedgerError
from ..finding import Finding, clock_finding, is_loopback
from ..ledger import Connection, Ledger, cleanup_holders
from ..ledger import inspection as ask
from ..pull import PullAdapter
from .adapters import check_consumers, check_dead_letters
from .pooler import check_pooler
from .upkeep import check_upkeep

SUBJECT = "PostgreSQL"

#: How long one answer may take.
PATIENCE = timedelta(seconds=3)

#: The major releases that are tested.
OLDEST, NEWEST = 14, 18

#: Connections that must be free: a worker process opens one a thread.
FREE_CONNECTIONS = 10

#: Dead rows below which it is not worth a word.
MANY_DEAD_ROWS = 20_000

#: How long a transaction may be open that keeps dead rows.
LONGEST_TRANSACTION = timedelta(minutes=10)

Check = Callable[[Connection], Iterator[Finding]]


def check_postgres(adapters: Sequence[PullAdapter]) -> Iterator[Finding]:
    """All that is looked at over ``DATABASE_URL``; raises ``SwitchboardError`` where it cannot be reached."""
    ledger = Ledger.from_environment()
    ledger.statement_timeout = PATIENCE
    with closing(ledger.connect()) as connection:
        # Each question is a transaction: a refused one takes no other with it.
        connection.autocommit = True
        yield from _each(
            connection,
            {
                "server": _server,
                "clock": _clock,
                "tls": _tls,
                "connections": _headroom,
                "cleaning_up": check_cleaning_up,
            },
        )
        yield from _guarded("pooler", lambda: check_pooler(ledger, connection))
        missing = False
        for finding in _guarded("schema", lambda: _schema(connection)):
            missing = missing or finding.severity == "error"
            yield finding
        if not missing:
            yield from _each(
                connection,
                {
                    "rights": _rights,
                    "upkeep": _upkeep,
                    "consumers": partial(check_consumers, adapters=adapters),
                    "dead_letters": check_dead_letters,
                },
            )


def _each(connection: Connection, checks: Mapping[str, Check]) -> Iterator[Finding]:
    for name, check in checks.items():
        yield from _guarded(name, partial(check, connection))


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except LedgerError as error:
        yield Finding(
            name, SUBJECT, "error", f"cannot be looked at: {error}",
            "see that PostgreSQL answers, and that the role of DATABASE_URL has its rights",
        )  # fmt: skip


def _server(connection: Connection) -> Iterator[Finding]:
    server = ask.server(connection)
    major = server.version_number // 10_000
    if major < OLDEST:
        yield Finding(
            "version", SUBJECT, "error", f"PostgreSQL {server.version} is older than {OLDEST}",
            f"upgrade it to {OLDEST} or newer",
        )  # fmt: skip
    elif major > NEWEST:
        yield Finding(
            "version", SUBJECT, "warning", f"PostgreSQL {server.version} is newer than any that was tested",
            f"use {NEWEST}, or a newer release of Switchboard",
        )  # fmt: skip
    else:
        yield Finding("version", SUBJECT, "ok", f"PostgreSQL {server.version}")
    if server.encoding != "UTF8":
        yield Finding(
            "encoding", SUBJECT, "error", f"the database's encoding is {server.encoding}",
            "create the database anew: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )  # fmt: skip
    yield from _durability(server)
    yield from _writable(server)
    if not server.is_utc:
        yield Finding(
            "time_zone", SUBJECT, "warning",
            f"the time zone is {server.time_zone}: what psql and SQL show differs from what Switchboard shows",
            "ALTER DATABASE … SET timezone TO 'UTC'; what is stored is right in any zone",
        )  # fmt: skip
    if not server.autovacuum:
        yield Finding(
            "autovacuum", SUBJECT, "error", "autovacuum is off: claiming todos gets slower with every one that ends",
            "turn it on: ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )  # fmt: skip
    if server.superuser:
        yield Finding(
            "role", SUBJECT, "warning", f"role {server.role} is a superuser",
            "give Switchboard a role of its own that owns its database, and no more",
        )  # fmt: skip


def _durability(server: ask.Server) -> Iterator[Finding]:
    if server.synchronous_commit == "off":
        yield Finding(
            "synchronous_commit", SUBJECT, "error",
            "synchronous_commit is off: a crash loses commits whose messages are acknowledged",
            "ALTER DATABASE … RESET synchronous_commit, and ALTER ROLE; or set it to on in postgresql.conf",
        )  # fmt: skip
    if not server.fsync:
        yield Finding(
            "fsync", SUBJECT, "error", "fsync is off: a crash of the host loses or corrupts the ledger",
            "set fsync = on in postgresql.conf",
        )  # fmt: skip


def _writable(server: ask.Server) -> Iterator[Finding]:
    if server.in_recovery:
        yield Finding(
            "read_only", SUBJECT, "error", "it is a standby: nothing can be stored",
            "point DATABASE_URL at the primary (target_session_attrs=read-write finds it among several hosts)",
        )  # fmt: skip
    elif server.read_only:
        yield Finding(
            "read_only", SUBJECT, "error", "transactions are read-only: nothing can be stored",
            "ALTER DATABASE … RESET default_transaction_read_only, and ALTER ROLE",
        )  # fmt: skip


def _clock(connection: Connection) -> Iterator[Finding]:
    began = time.time()
    there = ask.clock(connection).timestamp()
    yield clock_finding(SUBJECT, there, began, time.time())


def _tls(connection: Connection) -> Iterator[Finding]:
    host = connection.info.host
    remote = not host.startswith("/") and not is_loopback(host)
    if remote and connection.pgconn.used_password and not connection.pgconn.ssl_in_use:
        yield Finding(
            "tls", SUBJECT, "warning", f"what is sent to {host} is not encrypted",
            "add sslmode=verify-full to DATABASE_URL",
        )  # fmt: skip


def _headroom(connection: Connection) -> Iterator[Finding]:
    free, most = ask.headroom(connection)
    if free < FREE_CONNECTIONS:
        yield Finding(
            "connections", SUBJECT, "warning", f"only {max(0, free)} more connections can be opened",
            f"raise max_connections ({most}) or the role's or database's CONNECTION LIMIT; or run fewer worker threads",
        )  # fmt: skip
    else:
        yield Finding("connections", SUBJECT, "ok", f"{free} more connections can be opened")


def check_cleaning_up(connection: Connection, longest: timedelta = LONGEST_TRANSACTION) -> Iterator[Finding]:
    """Dead rows that have piled up, and the transactions that keep them."""
    for table, dead, live in ask.dead_rows(connection, MANY_DEAD_ROWS):
        yield Finding(
            "dead_rows", SUBJECT, "warning", f"table {table} has {dead} dead rows beside {live} live ones",
            f"end what keeps them (see oldest_transaction), then VACUUM {table}; see that autovacuum keeps up",
        )  # fmt: skip
    for holder in cleanup_holders(connection, older=longest)[:1]:
        end = (
            f"end it, if it has been forgotten: ROLLBACK PREPARED '{holder.who}'"
            if holder.pid is None
            else f"end it, if it has been forgotten: SELECT pg_terminate_backend({holder.pid})"
        )
        yield Finding(
            "oldest_transaction", SUBJECT, "warning",
            f"a transaction of {holder.who} ({holder.state}) is {timedelta(seconds=int(holder.age_seconds))} old: "
            "no dead row since can be removed",
            end,
        )  # fmt: skip


def _schema(connection: Connection) -> Iterator[Finding]:
    lacking, unknown, has_any = ask.schema_difference(connection)
    if not has_any:
        yield Finding("schema", SUBJECT, "error", "the database is not migrated", "switchboard migrate")
    elif lacking:
        yield Finding(
            "schema", SUBJECT, "error", f"the schema is behind: it lacks {', '.join(lacking)}", "switchboard migrate"
        )
    if unknown:
        yield Finding(
            "schema", SUBJECT, "warning",
            f"the schema is ahead: it has {', '.join(unknown)}, which this release does not know",
            "run the release here that runs elsewhere",
        )  # fmt: skip
    if has_any and not lacking and not unknown:
        yield Finding("schema", SUBJECT, "ok", "the schema is this release's")


def _upkeep(connection: Connection) -> Iterator[Finding]:
    # What is wrong with its schedules is said where the configuration is looked at.
    with suppress(ConfigError):
        yield from check_upkeep(connection)


def _rights(connection: Connection) -> Iterator[Finding]:
    server = ask.server(connection)
    role = server.role
    denied = ask.denied_rights(connection)
    if denied:
        yield Finding(
            "rights", SUBJECT, "error", f"role {role} lacks rights on {', '.join(denied)}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {server.schema} TO {role}; "
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {server.schema} TO {role}",
        )  # fmt: skip
    else:
        yield Finding("rights", SUBJECT, "ok", f"role {role} has the rights it needs")
