"""Retention: both an age and a number of rows bound what is kept (SPEC-0004, Hybrid Retention)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from ..errors import LedgerError
from .connection import Connection, within
from .settings import get_setting

#: Rows one statement deletes at most: an unbounded DELETE takes minutes and holds everybody up.
STEP_ROWS = 10_000

#: A retention pass may take this long a statement.
PRUNE_TIMEOUT = timedelta(minutes=5)

# A second scheduler, or a pass that takes longer than its period, must not prune twice over.
_LOCK = sql.SQL("SELECT pg_try_advisory_xact_lock(hashtext('switchboard.prune'))")

# Each statement re-checks the state it deletes by: a retry that comes in between keeps its todo.
_TODOS_BY_AGE = sql.SQL("""
DELETE FROM todos WHERE state IN ('done', 'failed') AND id IN (
    SELECT id FROM todos WHERE state IN ('done', 'failed')
        AND completed_at < now() - make_interval(days => %(days)s)
    ORDER BY completed_at LIMIT %(step)s FOR UPDATE SKIP LOCKED)
""")
_TODOS_BY_ROWS = sql.SQL("""
DELETE FROM todos WHERE state IN ('done', 'failed') AND id IN (
    SELECT id FROM todos WHERE state IN ('done', 'failed')
    ORDER BY completed_at NULLS FIRST LIMIT least(%(step)s, greatest(0, (SELECT count(*) FROM todos) - %(rows)s))
    FOR UPDATE SKIP LOCKED)
""")
# The event of a live todo stays with it.
_EVENTS_BY_AGE = sql.SQL("""
DELETE FROM events WHERE id IN (
    SELECT id FROM events e WHERE received_at < now() - make_interval(days => %(days)s)
        AND NOT EXISTS (SELECT FROM todos t WHERE t.event_id = e.id AND t.state IN ('pending', 'claimed'))
    ORDER BY id LIMIT %(step)s)
""")
_EVENTS_BY_ROWS = sql.SQL("""
DELETE FROM events WHERE id IN (
    SELECT id FROM events e
        WHERE NOT EXISTS (SELECT FROM todos t WHERE t.event_id = e.id AND t.state IN ('pending', 'claimed'))
    ORDER BY id LIMIT least(%(step)s, greatest(0, (SELECT count(*) FROM events) - %(rows)s)))
""")


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows a pass deleted."""

    events: int = 0
    todos: int = 0


def prune(connection: Connection, *, timeout: timedelta | None = None) -> Pruned | None:
    """Deletes events and terminal todos beyond ``retention_max_age_days``, then the oldest beyond
    ``retention_max_rows``, in the caller's one transaction; pending and claimed todos stay, with their events.

    Returns None where another session is pruning. Raises ``LedgerError`` where a setting is not a whole number.
    """
    with within(connection, timeout, "prune"):
        locked = connection.execute(_LOCK).fetchone()
        if not locked or not locked[0]:
            return None
        limits = {
            "days": _whole(connection, "retention_max_age_days"),
            "rows": _whole(connection, "retention_max_rows"),
            "step": STEP_ROWS,
        }
        todos = sum(_repeat(connection, statement, limits) for statement in (_TODOS_BY_AGE, _TODOS_BY_ROWS))
        events = sum(_repeat(connection, statement, limits) for statement in (_EVENTS_BY_AGE, _EVENTS_BY_ROWS))
    return Pruned(events=events, todos=todos)


def _repeat(connection: Connection, statement: sql.SQL, limits: dict[str, int]) -> int:
    total = 0
    while deleted := connection.execute(statement, limits).rowcount:
        total += deleted
        if deleted < STEP_ROWS:
            break
    return total


def _whole(connection: Connection, key: str) -> int:
    value = get_setting(connection, key)
    if not value.isdecimal():
        raise LedgerError(f"setting {key}: expected a whole number, got {value!r}")
    return int(value)
