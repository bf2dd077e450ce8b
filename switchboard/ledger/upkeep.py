"""Table ``upkeep``: when each job last did its work, how long that took and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from .connection import Connection, stay_open, within

# Of the transaction, so that it works through a pooler, and ends with whoever held it. Named, so that whoever looks for
# old transactions knows it for what it is.
_TAKE = sql.SQL("SELECT pg_try_advisory_xact_lock(hashtext(%(name)s)), set_config('application_name', %(name)s, true)")

_NOTE = sql.SQL("""
INSERT INTO upkeep (job, last_succeeded_at, last_duration_seconds, counts)
VALUES (%(job)s, clock_timestamp(), extract(epoch FROM clock_timestamp() - %(began_at)s), %(counts)s)
ON CONFLICT (job) DO UPDATE SET last_succeeded_at = excluded.last_succeeded_at,
    last_duration_seconds = excluded.last_duration_seconds, counts = excluded.counts
""")

_LIST = sql.SQL("""
SELECT job, last_succeeded_at, last_duration_seconds, counts,
       extract(epoch FROM clock_timestamp() - last_succeeded_at)::float8 AS seconds_ago
FROM upkeep ORDER BY job
""")

_MIGRATED = sql.SQL("SELECT extract(epoch FROM clock_timestamp() - min(applied_at))::float8 FROM schema_migrations")


@dataclass(frozen=True, slots=True)
class UpkeepRow:
    """A job's last success, as its row is, and how long ago that was by the database's clock."""

    job: str
    last_succeeded_at: datetime
    last_duration_seconds: float
    counts: dict[str, int]
    seconds_ago: float


def take_upkeep(connection: Connection, job: str, *, timeout: timedelta | None = None) -> bool:
    """Whether this transaction, which may be long, is the one that does ``job`` now; until its end no other is."""
    with within(connection, timeout, f"{job}: take its lock"):
        stay_open(connection)
        row = connection.execute(_TAKE, {"name": f"switchboard.{job}"}).fetchone()
    return bool(row and row[0])


def note_upkeep(
    connection: Connection,
    job: str,
    began_at: datetime,
    counts: Mapping[str, int],
    *,
    timeout: timedelta | None = None,
) -> None:
    """Records that ``job``, which began at that time of the database's, has done its work."""
    values = {"job": job, "began_at": began_at, "counts": json.dumps(counts)}
    with within(connection, timeout, f"{job}: record its success"):
        connection.execute(_NOTE, values)


def list_upkeep(connection: Connection, *, timeout: timedelta | None = None) -> list[UpkeepRow]:
    """Every job that ever did its work, by name."""
    with within(connection, timeout, "list upkeep"), connection.cursor(row_factory=class_row(UpkeepRow)) as cursor:
        return cursor.execute(_LIST).fetchall()


def migrated_seconds_ago(connection: Connection, *, timeout: timedelta | None = None) -> float:
    """How long ago the database was first migrated: before that no job could have been done."""
    with within(connection, timeout, "look at the migrations"):
        row = connection.execute(_MIGRATED).fetchone()
    return float(row[0]) if row and row[0] is not None else 0.0
