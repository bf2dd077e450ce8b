"""What ``switchboard doctor`` asks PostgreSQL about itself; nothing is changed by it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from .connection import Connection, within
from .failures import translate
from .migrator import shipped_migrations
from .pool import Ledger
from .wire import TextArray

#: The tables, and what has to be done with each.
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
_RIGHTS = {
    "adapters": _ALL,
    "agents": ("SELECT", "INSERT", "UPDATE"),
    "consumers": _ALL,
    "dead_letters": _ALL,
    "endpoints": ("SELECT", "INSERT", "UPDATE"),
    "events": _ALL,
    "humans": ("SELECT", "INSERT", "DELETE"),
    "pending_acks": _ALL,
    "schema_migrations": ("SELECT",),
    "sessions": ("SELECT", "INSERT", "DELETE"),
    "settings": ("SELECT", "INSERT", "UPDATE"),
    "todos": _ALL,
    "upkeep": _ALL,
}

_SERVER = sql.SQL("""
SELECT current_setting('server_version_num')::int AS version_number,
       current_setting('server_version') AS version,
       current_setting('server_encoding') AS encoding,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') = 'on' AS fsync,
       current_setting('autovacuum') = 'on' AS autovacuum,
       current_setting('transaction_read_only') = 'on' AS read_only,
       pg_is_in_recovery() AS in_recovery,
       current_setting('TimeZone') AS time_zone,
       extract(timezone FROM timestamptz '2026-01-15 12:00Z') = 0
           AND extract(timezone FROM timestamptz '2026-07-15 12:00Z') = 0 AS is_utc,
       current_user::text AS role,
       quote_ident(coalesce(current_schema(), 'public')) AS schema,
       coalesce((SELECT rolsuper FROM pg_roles WHERE rolname = current_user), false) AS superuser
""")

_CLOCK = sql.SQL("SELECT clock_timestamp()")

# numbackends, as pg_stat_activity hides what others do from an ordinary role.
_HEADROOM = sql.SQL("""
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0)
        - (SELECT sum(numbackends) FROM pg_stat_database),
    (SELECT CASE WHEN datconnlimit >= 0 THEN datconnlimit - numbackends END
        FROM pg_database JOIN pg_stat_database USING (datname) WHERE datname = current_database()),
    (SELECT CASE WHEN rolconnlimit >= 0 THEN rolconnlimit - (SELECT count(*) FROM pg_stat_activity
        WHERE usename = current_user) END FROM pg_roles WHERE rolname = current_user)
)::int, current_setting('max_connections')::int
""")

_EXISTS = sql.SQL("SELECT to_regclass('schema_migrations') IS NOT NULL")
_APPLIED = sql.SQL("SELECT version FROM schema_migrations")

_DENIED = sql.SQL("""
(SELECT name || ' (' || string_agg(privilege, ', ') || ')'
 FROM unnest(%s::text[], %s::text[]) AS wanted (name, privilege)
 WHERE to_regclass(name) IS NOT NULL AND NOT has_table_privilege(to_regclass(name), privilege)
 GROUP BY name ORDER BY name)
UNION ALL
SELECT name || ' (USAGE)' FROM (VALUES ('events_id_seq')) AS sequences (name)
WHERE to_regclass(name) IS NOT NULL AND NOT has_sequence_privilege(to_regclass(name), 'USAGE')
""")

_DEAD_ROWS = sql.SQL("""
SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND relname = ANY(%s) AND n_dead_tup >= %s AND n_dead_tup > n_live_tup
ORDER BY n_dead_tup DESC
""")

_SET = sql.SQL("SELECT set_config('switchboard.doctor', %s, false)")
_GET = sql.SQL("SELECT current_setting('switchboard.doctor', true), pg_backend_pid()")

#: A channel of its own: nobody else is nudged.
_CHANNEL = "switchboard_doctor"
_LISTEN = sql.SQL("LISTEN {}").format(sql.Identifier(_CHANNEL))
_NOTIFY = sql.SQL("SELECT pg_notify(%s, %s)")


@dataclass(frozen=True, slots=True)
class Server:
    """What PostgreSQL says of itself and of this session."""

    version_number: int
    version: str
    encoding: str
    synchronous_commit: str
    fsync: bool
    autovacuum: bool
    read_only: bool
    in_recovery: bool
    time_zone: str
    is_utc: bool
    role: str
    #: The schema in which its tables are made, as SQL has it.
    schema: str
    superuser: bool


def server(connection: Connection) -> Server:
    """The server's and the session's settings that matter here."""
    with within(connection, None, "server"), connection.cursor(row_factory=class_row(Server)) as cursor:
        row = cursor.execute(_SERVER).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return row


def clock(connection: Connection) -> datetime:
    """The server's clock."""
    with within(connection, None, "clock"):
        row = connection.execute(_CLOCK).fetchone()
    assert row is not None  # noqa: S101
    found: datetime = row[0]
    return found


def headroom(connection: Connection) -> tuple[int, int]:
    """How many more connections this role can open in this database, and ``max_connections``."""
    with within(connection, None, "connections"):
        row = connection.execute(_HEADROOM).fetchone()
    assert row is not None  # noqa: S101
    return row[0], row[1]


def schema_difference(connection: Connection) -> tuple[list[str], list[str], bool]:
    """The migrations that the database lacks, those that this version does not know, and whether it has any."""
    with within(connection, None, "schema"):
        if not (connection.execute(_EXISTS).fetchone() or [False])[0]:
            return [each.version for each in shipped_migrations()], [], False
        applied = {row[0] for row in connection.execute(_APPLIED)}
    shipped = [each.version for each in shipped_migrations()]
    return [each for each in shipped if each not in applied], sorted(applied - set(shipped)), True


def denied_rights(connection: Connection) -> list[str]:
    """The tables and sequences on which this role lacks a right that Switchboard needs: ``todos (UPDATE, DELETE)``.

    The event of a delivery without a native id is numbered before it is inserted, which ``INSERT`` does not cover.
    """
    wanted = [(table, right) for table, rights in _RIGHTS.items() for right in rights]
    with within(connection, None, "rights"):
        rows = connection.execute(
            _DENIED, (TextArray.of([table for table, _ in wanted]), TextArray.of([right for _, right in wanted]))
        )
        return [row[0] for row in rows]


def dead_rows(connection: Connection, at_least: int) -> list[tuple[str, int, int]]:
    """Tables of ours with more dead rows than live ones, and so many at least: name, dead, live."""
    with within(connection, None, "dead rows"):
        return [(row[0], row[1], row[2]) for row in connection.execute(_DEAD_ROWS, (TextArray.of(_RIGHTS), at_least))]


def announced_pid(connection: Connection) -> tuple[int, int]:
    """The backend that was announced as the connection was made, and the one that answers: a pooler's differ."""
    with within(connection, None, "backend"):
        row = connection.execute(_GET).fetchone()
    return connection.info.backend_pid, row[1] if row else 0


def keeps_sessions(ledger: Ledger) -> bool:
    """Whether a session is the same one from transaction to transaction: not behind a pooler in transaction mode.

    Between two transactions of one connection another one takes the server's session that it would get again.
    """
    with contextlib.closing(ledger.connect()) as ours, contextlib.closing(ledger.connect()) as other:
        try:
            ours.execute(_SET, ("ours",))
            before = ours.execute(_GET).fetchone()
            ours.commit()
            other.execute(_GET)
            after = ours.execute(_GET).fetchone()
            ours.commit()
            other.commit()
        except psycopg.Error as error:
            raise translate(error, "sessions") from error
    return before == after


def hears_notifications(ledger: Ledger, timeout_seconds: float = 2.0) -> bool:
    """Whether what is announced at the ledger's address is heard at the one that is listened at."""
    token = f"{time.time_ns()}"
    with contextlib.closing(ledger.connect(direct=True)) as ear, contextlib.closing(ledger.connect()) as mouth:
        try:
            ear.execute(_LISTEN)
            mouth.execute(_NOTIFY, (_CHANNEL, token))
            mouth.commit()
            # It ends with the first that is ours: two that look at the same time hear each other.
            return any(each.payload == token for each in ear.notifies(timeout=timeout_seconds))
        except psycopg.Error as error:
            raise translate(error, "listen") from error
