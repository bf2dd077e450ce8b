"""How much there is, and how fast it goes: what those who watch ask of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..model import TodoState
from .connection import Connection, within
from .consumers import THERE_WITHIN
from .wire import TextArray

# A partial index answers for each but ``done``: for that the table is read, as an index with its queue would cost every
# insert. (Of 1,000,000 done todos, 500 MB: 1 to 3 s; of 100,000 pending ones: 50 ms.)
_TODOS: dict[TodoState, sql.SQL] = {
    "pending": sql.SQL("""
        SELECT queue, count(*), extract(epoch FROM now() - min(created_at))::float8 AS oldest_age_seconds
        FROM todos WHERE state = 'pending' GROUP BY queue
    """),
    "claimed": sql.SQL("""
        SELECT queue, sum(count)::bigint AS count, NULL::float8 AS oldest_age_seconds FROM (
            SELECT queue, count(*) FROM todos WHERE state = 'claimed' AND owner IS NULL GROUP BY queue
            UNION ALL
            SELECT queue, count(*) FROM todos WHERE state = 'claimed' AND owner IS NOT NULL GROUP BY queue
        ) AS claimed GROUP BY queue
    """),
    "failed": sql.SQL("""
        SELECT queue, count(*), NULL::float8 AS oldest_age_seconds FROM todos WHERE state = 'failed' GROUP BY queue
    """),
    "done": sql.SQL("""
        SELECT queue, count(*), NULL::float8 AS oldest_age_seconds FROM todos WHERE state = 'done' GROUP BY queue
    """),
}

_DEAD_LETTERS = sql.SQL("""
SELECT adapter, reason, count(*), extract(epoch FROM clock_timestamp() - min(received_at))::float8 AS oldest_age_seconds
FROM dead_letters WHERE resolved_at IS NULL GROUP BY adapter, reason ORDER BY adapter, reason
""")

_ADAPTERS = sql.SQL("""
SELECT name, enabled,
       count(*) FILTER (WHERE seen_at > now() - %s) AS consumers,
       extract(epoch FROM max(polled_at))::float8 AS polled_at_seconds
FROM adapters LEFT JOIN consumers ON adapter = name
WHERE family = 'queue'
GROUP BY name
""")


#: Rates are of so long ago until now: two index ranges, whatever the tables hold.
WINDOW = timedelta(seconds=10)

# By each source's own range of idx_events_source_time.
_STORED = sql.SQL("""
SELECT source, (SELECT count(*) FROM events WHERE events.source = named.source AND received_at > now() - %s)
FROM unnest(%s::text[]) AS named (source)
""")

_DONE = sql.SQL("""
SELECT queue, count(*) FROM todos WHERE state IN ('done', 'failed') AND state = 'done' AND completed_at > now() - %s
GROUP BY queue
""")


@dataclass(frozen=True, slots=True)
class TodoCount:
    """How many todos of a queue are in a state; of pending ones, how long the oldest has been waiting."""

    queue: str
    count: int
    oldest_age_seconds: float | None


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many dead letters of an adapter, for one reason, are neither replayed nor discarded, and how old one is."""

    adapter: str
    reason: str
    count: int
    oldest_age_seconds: float


@dataclass(frozen=True, slots=True)
class AdapterActivity:
    """A pull adapter as its consumers say: how many there are, and the Unix second of the last successful poll."""

    name: str
    enabled: bool
    consumers: int
    polled_at_seconds: float | None


def count_todos(connection: Connection, state: TodoState, *, timeout: timedelta | None = None) -> list[TodoCount]:
    """The todos in that state by queue, of queues that have any; it reads as much as there are of them, and for
    ``done`` the whole table.
    """
    with (
        within(connection, timeout, f"count {state} todos"),
        connection.cursor(row_factory=class_row(TodoCount)) as cursor,
    ):
        return cursor.execute(_TODOS[state]).fetchall()


def count_unresolved_dead_letters(connection: Connection, *, timeout: timedelta | None = None) -> list[DeadLetterCount]:
    """The dead letters that nobody has decided about, by adapter and reason."""
    with (
        within(connection, timeout, "count dead letters"),
        connection.cursor(row_factory=class_row(DeadLetterCount)) as cursor,
    ):
        return cursor.execute(_DEAD_LETTERS).fetchall()


def list_adapter_activity(connection: Connection, *, timeout: timedelta | None = None) -> list[AdapterActivity]:
    """Every pull adapter that ever registered, with its consumers that were seen within ``consumers.THERE_WITHIN``; a
    webhook has none.
    """
    with (
        within(connection, timeout, "list adapter activity"),
        connection.cursor(row_factory=class_row(AdapterActivity)) as cursor,
    ):
        return cursor.execute(_ADAPTERS, (THERE_WITHIN,)).fetchall()


def stored_per_second(connection: Connection, adapters: list[str]) -> dict[str, float]:
    """Events a second that came in through each of these adapters."""
    with within(connection, None, "how fast it goes"):
        rows = connection.execute(_STORED, (WINDOW, TextArray.of(adapters))).fetchall()
    return {name: count / WINDOW.total_seconds() for name, count in rows}


def done_per_second(connection: Connection) -> dict[str, float]:
    """Todos a second that were done, by queue; queues in which any was."""
    with within(connection, None, "how fast it goes"):
        rows = connection.execute(_DONE, (WINDOW,)).fetchall()
    return {queue: count / WINDOW.total_seconds() for queue, count in rows}
