"""How fast it goes, by the rows of the last seconds: two index ranges, whatever the tables hold."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

from .connection import Connection, within
from .wire import TextArray

#: What "now" is: rates are of so long ago until now.
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


def stored_per_second(connection: Connection, adapters: list[str]) -> dict[str, float]:
    """Events a second that came in through each of these adapters."""
    with within(connection, None, "rates"):
        rows = connection.execute(_STORED, (WINDOW, TextArray.of(adapters))).fetchall()
    return {name: count / WINDOW.total_seconds() for name, count in rows}


def done_per_second(connection: Connection) -> dict[str, float]:
    """Todos a second that were done, by queue; queues in which any was."""
    with within(connection, None, "rates"):
        rows = connection.execute(_DONE, (WINDOW,)).fetchall()
    return {queue: count / WINDOW.total_seconds() for queue, count in rows}
