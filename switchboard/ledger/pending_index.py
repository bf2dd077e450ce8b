"""The health of ``idx_todos_pending``, on which every claim depends: dead rows and bloat are what slows it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from .connection import Connection, within
from .failures import translate
from .pool import Ledger

#: Bytes below which an index is small, whatever is dead in it.
SMALL_INDEX = 16 * 1024**2

#: Bytes of an entry beside its queue's name, in a dense index.
ENTRY_BYTES = 40

#: How much larger than a dense one an index may be; splits alone make it twice as large.
BLOATED_TIMES = 4

#: How long a transaction may keep dead rows from being cleaned up before it is named.
HELD_TOO_LONG = timedelta(minutes=5)

#: How long a rebuild may take, and how long it waits for those who use the table.
REBUILD_TIMEOUT, REBUILD_LOCK_TIMEOUT = timedelta(minutes=10), timedelta(seconds=10)

_INSPECT = sql.SQL("""
SELECT coalesce(n_dead_tup, 0) AS dead_rows, pg_relation_size('idx_todos_pending') AS size_bytes,
       CASE WHEN pg_relation_size('idx_todos_pending') > %(small)s
            THEN (SELECT coalesce(sum(%(entry)s + octet_length(queue)), 0) FROM todos WHERE state = 'pending')
            ELSE 0 END AS dense_bytes
FROM pg_stat_user_tables WHERE relid = 'todos'::regclass
""")

# Only one that has a snapshot, or has written, keeps dead rows from being cleaned up.
_HOLDERS = sql.SQL("""
SELECT pid, coalesce(nullif(application_name, ''), usename::text, '?') AS who, state,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_seconds
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND xact_start <= clock_timestamp() - %(older)s AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
UNION ALL
SELECT NULL, gid, 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE database = current_database() AND prepared <= clock_timestamp() - %(older)s
ORDER BY age_seconds DESC
""")

_PATIENCE = sql.SQL("SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)")
_REBUILD = sql.SQL("REINDEX INDEX CONCURRENTLY idx_todos_pending")

# What a rebuild that was broken off leaves behind: it is never read, and every insert still writes to it.
_LEFTOVERS = sql.SQL("""
SELECT relnamespace::regnamespace::text, relname FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
WHERE indrelid = 'todos'::regclass AND NOT indisvalid AND relname ~ '^idx_todos_pending_cc(new|old)[0-9]*$'
""")
_DROP = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}")


@dataclass(frozen=True, slots=True)
class PendingIndex:
    """How the index and its table are; ``dense_bytes`` is what its entries need, counted where it is not small."""

    dead_rows: int
    size_bytes: int
    dense_bytes: int

    @property
    def bloated(self) -> bool:
        """Whether a rebuild pays."""
        return self.size_bytes > max(SMALL_INDEX, BLOATED_TIMES * self.dense_bytes)


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that keeps dead rows from being cleaned up; one that is prepared has no pid."""

    pid: int | None
    who: str
    state: str | None
    age_seconds: float


def inspect_pending_index(connection: Connection, *, timeout: timedelta | None = None) -> PendingIndex:
    """How ``idx_todos_pending`` is, by the statistics that PostgreSQL keeps of its table."""
    with (
        within(connection, timeout, "inspect idx_todos_pending"),
        connection.cursor(row_factory=class_row(PendingIndex)) as cursor,
    ):
        return cursor.execute(_INSPECT, {"small": SMALL_INDEX, "entry": ENTRY_BYTES}).fetchone() or PendingIndex(
            0, 0, 0
        )


def cleanup_holders(
    connection: Connection, *, older: timedelta = HELD_TOO_LONG, timeout: timedelta | None = None
) -> list[Holder]:
    """The transactions older than that which keep dead rows from being cleaned up, the oldest first.

    Those of other users are seen only with the rights of ``pg_read_all_stats``.
    """
    with (
        within(connection, timeout, "look for old transactions"),
        connection.cursor(row_factory=class_row(Holder)) as cursor,
    ):
        return cursor.execute(_HOLDERS, {"older": older}).fetchall()


def rebuild_pending_index(ledger: Ledger) -> None:
    """Builds the index anew beside the old one, with claims and inserts going on.

    Raises ``LedgerUnavailable`` where somebody uses the table for longer than that waits: nothing has changed then.
    """
    with closing(ledger.connect(direct=True)) as connection:
        connection.patience = REBUILD_TIMEOUT
        try:
            connection.execute(_PATIENCE, [_milliseconds(REBUILD_TIMEOUT), _milliseconds(REBUILD_LOCK_TIMEOUT)])
            _drop_leftovers(connection)
            try:
                connection.execute(_REBUILD)
            finally:
                if not connection.closed:
                    _drop_leftovers(connection)
        except psycopg.Error as error:
            raise translate(error, "rebuild idx_todos_pending") from error


def _drop_leftovers(connection: Connection) -> None:
    for name in connection.execute(_LEFTOVERS).fetchall():
        connection.execute(_DROP.format(sql.Identifier(*name)))


def _milliseconds(duration: timedelta) -> str:
    return str(int(duration.total_seconds() * 1000))
