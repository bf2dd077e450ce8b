"""The health of ``idx_todos_pending``, on which every claim depends: dead rows and bloat are what slows it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import LedgerError
from .connection import Connection, within
from .holders import HELD_TOO_LONG, cleanup_holders
from .pool import Ledger
from .todos import database_time
from .upkeep import list_upkeep, note_upkeep

logger = logging.getLogger(__name__)

#: Bytes below which an index is small, whatever is dead in it.
SMALL_INDEX = 16 * 1024**2

#: Bytes of an entry beside its queue's name, in a dense index.
ENTRY_BYTES = 40

#: How much larger than a dense one an index may be; splits alone make it twice as large.
BLOATED_TIMES = 4

#: The shortest time between two rebuilds: one gives room back on disk, and no time.
REBUILD_INTERVAL = timedelta(days=1)

#: How long counting what an index needs may take.
COUNT_TIMEOUT = timedelta(seconds=10)

#: What a rebuild is noted as among the jobs of upkeep: when one was last tried.
REBUILD_JOB = "rebuild_pending_index"

#: How long a rebuild may take, and how long it waits for those who use the table.
REBUILD_TIMEOUT, REBUILD_LOCK_TIMEOUT = timedelta(minutes=10), timedelta(seconds=10)

_INSPECT = sql.SQL("""
SELECT coalesce(n_dead_tup, 0) AS dead_rows, pg_relation_size('idx_todos_pending') AS size_bytes,
       (SELECT greatest(0, reltuples) FROM pg_class WHERE oid = 'idx_todos_pending'::regclass)
           * (%(entry)s + coalesce((SELECT avg_width FROM pg_stats WHERE schemaname = current_schema()
                                    AND tablename = 'todos' AND attname = 'queue'), 0)) AS dense_bytes
FROM pg_stat_user_tables WHERE relid = 'todos'::regclass
""")

_DENSE_BYTES = sql.SQL("SELECT coalesce(sum(%s + octet_length(queue)), 0) FROM todos WHERE state = 'pending'")

_PATIENCE = sql.SQL("SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)")
_WHO = sql.SQL("SELECT pg_backend_pid()")
_REBUILD = sql.SQL("REINDEX INDEX CONCURRENTLY idx_todos_pending")

# What a rebuild that was broken off leaves behind: it is never read, and every insert still writes to it. One that
# goes on has the same; of another role's it is not told which table it is of.
_LEFTOVERS = sql.SQL("""
SELECT relnamespace::regnamespace::text, relname FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
WHERE indrelid = 'todos'::regclass AND NOT indisvalid AND relname ~ '^idx_todos_pending_cc(new|old)[0-9]*$'
  AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index
                  WHERE datname = current_database() AND coalesce(relid, indrelid) = indrelid)
""")
_DROP = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}")


@dataclass(frozen=True, slots=True)
class PendingIndex:
    """How the index and its table are, by PostgreSQL's own statistics; ``dense_bytes`` is what its entries need."""

    dead_rows: int
    size_bytes: int
    dense_bytes: int

    @property
    def bloated(self) -> bool:
        """Whether a rebuild pays."""
        return self.size_bytes > max(SMALL_INDEX, BLOATED_TIMES * self.dense_bytes)


def inspect_pending_index(connection: Connection, *, timeout: timedelta | None = None) -> PendingIndex:
    """How ``idx_todos_pending`` is; nothing is counted for it."""
    with (
        within(connection, timeout, "inspect idx_todos_pending"),
        connection.cursor(row_factory=class_row(PendingIndex)) as cursor,
    ):
        return cursor.execute(_INSPECT, {"entry": ENTRY_BYTES}).fetchone() or PendingIndex(0, 0, 0)


def look_after_pending_index(ledger: Ledger, *, held_too_long: timedelta = HELD_TOO_LONG) -> bool:
    """Names in a warning who keeps dead rows from being cleaned up, drops what a rebuild that was broken off left, and
    rebuilds the index where it is bloated, once a day at most; whether it did. What cannot be done is a warning, too.
    """
    try:
        with ledger.transaction(doing="look after idx_todos_pending") as transaction:
            connection = transaction.connection
            index = inspect_pending_index(connection)
            holders = cleanup_holders(connection, older=held_too_long)
            tried = [row.seconds_ago for row in list_upkeep(connection) if row.job == REBUILD_JOB]
            now = database_time(connection)
            with within(connection, None, "look for leftovers of idx_todos_pending"):
                leftovers = connection.execute(_LEFTOVERS).fetchall()
        for holder in holders[:1]:
            logger.warning(
                "a transaction of %s (pid %s, %s) has been open for %d minutes: until it ends, dead rows of todos "
                "stay, %d by now, and claims slow down",
                holder.who,
                holder.pid,
                holder.state,
                holder.age_seconds // 60,
                index.dead_rows,
            )
        if leftovers:
            with _unpooled(ledger, "drop leftovers of idx_todos_pending") as unpooled:
                _drop_leftovers(unpooled)
        recently = any(seconds < REBUILD_INTERVAL.total_seconds() for seconds in tried)
        # Counted before it is rebuilt, and only then: the statistics may be old.
        if not index.bloated or holders or recently or not _is_bloated(ledger, index):
            return False
        with ledger.transaction(doing="look after idx_todos_pending") as transaction:
            # As tried: one that fails would build and drop it each minute.
            note_upkeep(transaction.connection, REBUILD_JOB, now, {"bytes_before": index.size_bytes})
        rebuild_pending_index(ledger)
    except LedgerError as error:
        logger.warning("idx_todos_pending is not looked after: %s", error)
        return False
    logger.info("rebuilt idx_todos_pending, which had %d bytes", index.size_bytes)
    return True


def _is_bloated(ledger: Ledger, index: PendingIndex) -> bool:
    doing = "count pending todos"
    with (
        ledger.transaction(timeout=COUNT_TIMEOUT, doing=doing) as transaction,
        within(transaction.connection, None, doing),
    ):
        row = transaction.connection.execute(_DENSE_BYTES, (ENTRY_BYTES,)).fetchone()
    return replace(index, dense_bytes=row[0] if row else 0).bloated


def rebuild_pending_index(ledger: Ledger) -> None:
    """Builds the index anew beside the old one, with claims and inserts going on.

    Raises ``LedgerUnavailable`` where somebody uses the table for longer than that waits: nothing has changed then; and
    ``LedgerError`` behind a pooler, whose sessions are not ours to set limits in.
    """
    with _unpooled(ledger, "rebuild idx_todos_pending") as connection:
        _drop_leftovers(connection)
        try:
            connection.execute(_REBUILD)
        finally:
            if not connection.closed:
                _drop_leftovers(connection)


@contextmanager
def _unpooled(ledger: Ledger, doing: str) -> Iterator[Connection]:
    """A connection of its own with a rebuild's patience, on which each statement commits by itself."""
    with closing(ledger.connect(direct=True)) as connection, within(connection, REBUILD_TIMEOUT, doing):
        row = connection.execute(_WHO).fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            raise LedgerError(f"{doing}: not through a pooler; set SWITCHBOARD_LISTEN_URL")
        connection.execute(_PATIENCE, [_milliseconds(REBUILD_TIMEOUT), _milliseconds(REBUILD_LOCK_TIMEOUT)])
        yield connection


def _drop_leftovers(connection: Connection) -> None:
    for name in connection.execute(_LEFTOVERS).fetchall():
        connection.execute(_DROP.format(sql.Identifier(*name)))
        logger.info("dropped %s, which a rebuild that was broken off had left", name[1])


def _milliseconds(duration: timedelta) -> str:
    return str(int(duration.total_seconds() * 1000))
