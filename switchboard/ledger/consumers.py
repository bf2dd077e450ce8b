"""Table ``consumers``: which process reads which adapter, and when its source last answered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..process_name import is_gone
from .connection import Connection, within
from .wire import TextArray

#: How long a consumer may have said nothing, and is there; it says something every five seconds.
THERE_WITHIN = timedelta(seconds=30)

#: How long until one is forgotten, where its process cannot be looked for from here.
FORGOTTEN_AFTER = timedelta(minutes=10)

# An error is kept until the next one; times are told as ages, as the clock is the database's.
_NOTE = sql.SQL("""
INSERT INTO consumers (process, adapter, polled_at, storing_since, standby, last_error, last_error_at)
VALUES (%(process)s, %(adapter)s, now() - %(polled_ago)s::interval, now() - %(storing_for)s::interval, %(standby)s,
        %(error)s, now() - %(error_ago)s::interval)
ON CONFLICT (process, adapter) DO UPDATE
    SET seen_at = now(),
        polled_at = coalesce(excluded.polled_at, consumers.polled_at),
        storing_since = excluded.storing_since,
        standby = excluded.standby,
        last_error = coalesce(excluded.last_error, consumers.last_error),
        last_error_at = coalesce(excluded.last_error_at, consumers.last_error_at)
""")

_LIST = sql.SQL("""
SELECT process, adapter, begun_at, seen_at, polled_at, storing_since, standby, last_error, last_error_at,
       now() AS asked_at
FROM consumers ORDER BY adapter, begun_at, process
""")

_PROCESSES = sql.SQL("SELECT DISTINCT process FROM consumers")

_FORGET = sql.SQL("DELETE FROM consumers WHERE process = ANY(%s) OR seen_at < now() - %s")


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """One adapter's consumer in one worker process; ``asked_at`` is the database's clock as the row was read."""

    process: str
    adapter: str
    begun_at: datetime
    seen_at: datetime
    polled_at: datetime | None
    storing_since: datetime | None
    standby: bool
    last_error: str | None
    last_error_at: datetime | None
    asked_at: datetime

    @property
    def is_there(self) -> bool:
        """Whether its process runs, as far as can be told from here, and has lately said so."""
        return self.asked_at - self.seen_at < THERE_WITHIN and not is_gone(self.process)


def note_poll(
    connection: Connection,
    *,
    process: str,
    adapter: str,
    polled_ago: timedelta | None,
    storing_for: timedelta | None = None,
    standby: bool = False,
    error: tuple[str, timedelta] | None = None,
    timeout: timedelta | None = None,
) -> None:
    """Says that this consumer is there, how long ago its source last answered, and for how long its oldest batch has
    been in the store; None: not yet, or none.

    ``error`` is the last one, as text that is safe to store, with its age.
    """
    text, error_ago = error if error is not None else (None, None)
    values = {
        "process": process,
        "adapter": adapter,
        "polled_ago": polled_ago,
        "storing_for": storing_for,
        "standby": standby,
        "error": text,
        "error_ago": error_ago,
    }
    with within(connection, timeout, f"note a poll of adapter {adapter}"):
        connection.execute(_NOTE, values)


def list_consumers(connection: Connection, *, timeout: timedelta | None = None) -> list[ConsumerRow]:
    """Every consumer that has not been forgotten, by adapter; one that is gone stays until ``forget_consumers``."""
    with (
        within(connection, timeout, "list consumers"),
        connection.cursor(row_factory=class_row(ConsumerRow)) as cursor,
    ):
        return cursor.execute(_LIST).fetchall()


def forget_consumers(
    connection: Connection, *, silent: timedelta = FORGOTTEN_AFTER, timeout: timedelta | None = None
) -> int:
    """Removes the consumers of processes that are known to have ended, and those that said nothing for ``silent``;
    returns how many. One that is there after all comes back with its next poll.
    """
    with within(connection, timeout, "forget consumers"):
        gone = [name for (name,) in connection.execute(_PROCESSES) if is_gone(name)]
        return connection.execute(_FORGET, (TextArray.of(gone), silent)).rowcount
