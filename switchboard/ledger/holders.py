"""Who keeps dead rows from being cleaned up: VACUUM removes none that an open transaction could still see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql
from psycopg.rows import class_row

from .connection import Connection, within

#: How long a transaction may keep dead rows from being cleaned up before it is named.
HELD_TOO_LONG = timedelta(minutes=5)

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


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that keeps dead rows from being cleaned up; one that is prepared has no pid."""

    pid: int | None
    who: str
    state: str | None
    age_seconds: float


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
