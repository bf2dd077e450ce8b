"""Retention: both an age and a number of rows bound what is kept (SPEC-0004, Hybrid Retention).

Rows are walked oldest first, on an index, by cursors of the caller's transaction, and deleted in steps by their place
in the table: no step reads again what an earlier one deleted, however many rows go.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import chain, count, islice
from typing import Any

from psycopg import sql

from .connection import Connection, give_way, within
from .settings import whole_setting
from .todos import database_time
from .upkeep import note_upkeep, take_upkeep
from .wire import TextArray

#: Rows one statement deletes at most: an unbounded DELETE holds everybody up (oban#92).
STEP_ROWS = 10_000

#: How long one statement of a pass may take.
PRUNE_TIMEOUT = timedelta(minutes=5)

# A walk ends where nothing more is to go: what counts is how soon its first rows come.
_FIRST_ROWS = sql.SQL("SELECT set_config('cursor_tuple_fraction', '0.0001', true)")

_OLDER = sql.SQL("{} < now() - make_interval(days => %(days)s)")
_YOUNGER = sql.SQL("{} >= now() - make_interval(days => %(days)s)")

_TODOS = sql.SQL("SELECT ctid::text FROM todos WHERE state IN ('done', 'failed') AND {} ORDER BY completed_at")
# What somebody changes at this moment is left alone, and so is what was changed since the walk came by.
_DELETE_TODOS = sql.SQL("""
DELETE FROM todos WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM todos WHERE ctid = ANY(%(rows)s::tid[]) AND state IN ('done', 'failed') FOR UPDATE SKIP LOCKED))
""")

# idx_events_source_time leads with the source: one look a source, and no scan of all events.
_SOURCES = sql.SQL("""
WITH RECURSIVE sources AS (
    (SELECT source FROM events ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT source FROM events WHERE source > sources.source ORDER BY source LIMIT 1)
    FROM sources WHERE source IS NOT NULL
)
SELECT source FROM sources WHERE source IS NOT NULL
""")
_EVENTS = sql.SQL("""
SELECT ctid::text, id, extract(epoch FROM received_at)::float8 FROM events
WHERE source = %(source)s AND {} ORDER BY received_at
""")
# The event of a live todo stays with it. Each arm is one partial index, however many todos have ended.
_LIVE_EVENTS = sql.SQL("""
SELECT event_id FROM todos WHERE state = 'pending' AND event_id IS NOT NULL
UNION ALL SELECT event_id FROM todos WHERE state = 'claimed' AND owner IS NULL AND event_id IS NOT NULL
UNION ALL SELECT event_id FROM todos WHERE state = 'claimed' AND owner IS NOT NULL AND event_id IS NOT NULL
""")
_DELETE_EVENTS = sql.SQL("DELETE FROM events WHERE ctid = ANY(%(rows)s::tid[])")

_LETTERS = sql.SQL("SELECT ctid::text FROM dead_letters WHERE {} AND {} ORDER BY received_at")
_SETTLED, _UNRESOLVED = sql.SQL("resolved_at IS NOT NULL"), sql.SQL("resolved_at IS NULL")
# One that is being replayed at this moment is left alone.
_DELETE_LETTERS = sql.SQL("""
DELETE FROM dead_letters WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dead_letters WHERE ctid = ANY(%(rows)s::tid[]) FOR UPDATE SKIP LOCKED))
""")

_COUNT = sql.SQL("SELECT count(*) FROM {}")


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows a pass deleted. ``unresolved`` are those dead letters that nobody had replayed or discarded."""

    events: int = 0
    todos: int = 0
    dead_letters: int = 0
    unresolved: int = 0


def prune(connection: Connection, *, timeout: timedelta | None = None) -> Pruned | None:
    """Deletes what is older than its setting allows, then the oldest beyond its cap, in the caller's one transaction:
    ended todos, events and dead letters. Pending and claimed todos stay, with their events.

    Returns None where another session is pruning. Raises ``LedgerError`` where a setting holds what it may not.
    """
    with within(connection, timeout, "prune"):
        if not take_upkeep(connection, "prune"):
            return None
        began_at = database_time(connection)
        connection.execute(_FIRST_ROWS)
        days, rows = (whole_setting(connection, f"retention_max_{bound}") for bound in ("age_days", "rows"))
        letter_days, letter_rows = (
            whole_setting(connection, f"dead_letters_max_{bound}") for bound in ("age_days", "rows")
        )
        todos = _prune_todos(connection, days, rows)
        events = _prune_events(connection, days, rows)
        settled, unresolved = _prune_dead_letters(connection, letter_days, letter_rows)
        pruned = Pruned(events, todos, settled + unresolved, unresolved)
        note_upkeep(connection, "prune", began_at, asdict(pruned))
    return pruned


def _prune_todos(connection: Connection, days: int, rows: int) -> int:
    ended = sql.SQL("completed_at")
    aged = _delete(connection, _DELETE_TODOS, _walk(connection, _TODOS.format(_OLDER.format(ended)), days=days))
    # Those that another program ended, at no known time, go first beyond the cap.
    timeless = _walk(connection, _TODOS.format(sql.SQL("completed_at IS NULL")))
    oldest = chain(timeless, _walk(connection, _TODOS.format(_YOUNGER.format(ended)), days=days))
    return aged + _delete(connection, _DELETE_TODOS, oldest, at_most=_excess(connection, "todos", rows))


def _prune_events(connection: Connection, days: int, rows: int) -> int:
    sources = [row[0] for row in connection.execute(_SOURCES)]
    older, younger = (
        [
            _walk(connection, _EVENTS.format(bound.format(sql.SQL("received_at"))), source=source, days=days)
            for source in sources
        ]
        for bound in (_OLDER, _YOUNGER)
    )
    # After the walks have begun: an event that they see has its todo here.
    live = _live_events(connection)
    aged = _delete(connection, _DELETE_EVENTS, _not_of(live, chain(*older)))
    oldest = _not_of(live, heapq.merge(*younger, key=lambda row: row[2]))
    return aged + _delete(connection, _DELETE_EVENTS, oldest, at_most=_excess(connection, "events", rows))


def _live_events(connection: Connection) -> array[int]:
    """The ids of the events that live todos came from, sorted."""
    return array("q", sorted(row[0] for row in _walk(connection, _LIVE_EVENTS)))


def _not_of(live: array[int], events: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for event in events:
        place = bisect_left(live, event[1])
        if place == len(live) or live[place] != event[1]:
            yield event


def _prune_dead_letters(connection: Connection, days: int, rows: int) -> list[int]:
    """How many went that were settled, and that were not; beyond the cap the settled ones go first."""
    received = sql.SQL("received_at")
    older, younger = (
        [
            _walk(connection, _LETTERS.format(bound.format(received), kind), days=days)
            for kind in (_SETTLED, _UNRESOLVED)
        ]
        for bound in (_OLDER, _YOUNGER)
    )
    aged = [_delete(connection, _DELETE_LETTERS, walk) for walk in older]
    excess = _excess(connection, "dead_letters", rows)
    trimmed: list[int] = []
    for walk in younger:
        trimmed.append(_delete(connection, _DELETE_LETTERS, walk, at_most=excess - sum(trimmed)))
    return [by_age + by_number for by_age, by_number in zip(aged, trimmed, strict=True)]


_numbers = count()


def _walk(connection: Connection, statement: sql.Composed | sql.SQL, **values: object) -> Iterator[tuple[Any, ...]]:
    """The statement's rows, as they are now, fetched in steps when they are wanted."""
    cursor = sql.Identifier(f"switchboard_prune_{next(_numbers)}")
    connection.execute(sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}").format(cursor, statement), values)
    return _fetched(connection, sql.SQL("FETCH {} FROM {}").format(sql.Literal(STEP_ROWS), cursor))


def _fetched(connection: Connection, fetch: sql.Composed) -> Iterator[tuple[Any, ...]]:
    while page := connection.execute(fetch).fetchall():
        yield from page


def _delete(
    connection: Connection, statement: sql.SQL, rows: Iterable[tuple[Any, ...]], *, at_most: int | None = None
) -> int:
    """Deletes the walked rows in steps, until ``at_most`` of them have gone; how many did."""
    deleted, left = 0, iter(rows)
    while at_most is None or deleted < at_most:
        give_way(connection, "prune")
        step = list(islice(left, STEP_ROWS if at_most is None else min(STEP_ROWS, at_most - deleted)))
        if not step:
            break
        places = TextArray.of(row[0] for row in step)
        deleted += connection.execute(statement, {"rows": places}).rowcount
    return deleted


def _excess(connection: Connection, table: str, rows: int) -> int:
    found = connection.execute(_COUNT.format(sql.Identifier(table))).fetchone()
    return max(0, found[0] - rows) if found else 0
