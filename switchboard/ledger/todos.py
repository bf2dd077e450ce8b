"""Table ``todos``: the durable work."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import LedgerUnavailable, NotFound
from ..model import Todo, TodoState, type_json
from ..normalize import storable_text
from .connection import Connection, within
from .wire import as_jsonb

_COLUMNS = sql.SQL(
    "id, queue, source, kind, title, payload, event_id, idempotency_key, assignee, state, owner, "
    "lease_expires_at, attempt, max_attempts, result, last_error, created_at, updated_at, claimed_at, completed_at"
)

_LIVE = sql.SQL("idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed'")

_CREATE = sql.SQL("""
INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key, assignee, max_attempts)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (queue, idempotency_key) WHERE {live} DO NOTHING
RETURNING {columns}
""").format(live=_LIVE, columns=_COLUMNS)

_LIVE_TWIN = sql.SQL("SELECT {columns} FROM todos WHERE queue = %s AND idempotency_key = %s AND {live}").format(
    columns=_COLUMNS, live=_LIVE
)

_GET = sql.SQL("SELECT {} FROM todos WHERE id = %s").format(_COLUMNS)

# Newest first, by primary key: a page costs the same wherever it is.
_LIST = sql.SQL("""
SELECT {} FROM todos
WHERE (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(state)s::text IS NULL OR state = %(state)s)
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC LIMIT %(limit)s
""").format(_COLUMNS)


def create_todo(
    connection: Connection,
    *,
    queue: str,
    title: str,
    payload: type_json = None,
    source: str = "",
    kind: str = "",
    event_id: int | None = None,
    idempotency_key: str | None = None,
    assignee: str | None = None,
    max_attempts: int = 5,
    timeout: timedelta | None = None,
) -> tuple[Todo, bool]:
    """Makes a pending todo and returns it with True, or the live one with that key with False.

    ``payload`` is any value ``json`` can write. A key is unique among the todos of its queue that are neither
    done nor failed (SPEC-0002).
    """
    values = (
        queue,
        source,
        storable_text(kind),
        storable_text(title),
        as_jsonb(payload),
        event_id,
        idempotency_key,
        assignee,
        max_attempts,
    )
    with within(connection, timeout, "create todo"), connection.cursor(row_factory=class_row(Todo)) as cursor:
        # Twice: between the two statements the live twin may have been done, and its key be free again.
        for _ in range(2):
            if made := cursor.execute(_CREATE, values).fetchone():
                return made, True
            if twin := cursor.execute(_LIVE_TWIN, (queue, idempotency_key)).fetchone():
                return twin, False
    raise LedgerUnavailable("create todo: its live twin changed state twice in the meantime; try again")


def get_todo(connection: Connection, todo_id: int, *, timeout: timedelta | None = None) -> Todo:
    """The todo with that id; ``NotFound`` where there is none."""
    with within(connection, timeout, "get todo"), connection.cursor(row_factory=class_row(Todo)) as cursor:
        todo = cursor.execute(_GET, (todo_id,)).fetchone()
    if todo is None:
        raise NotFound(f"no todo {todo_id}")
    return todo


def list_todos(
    connection: Connection,
    *,
    queue: str | None = None,
    state: TodoState | None = None,
    before: int | None = None,
    limit: int = 50,
    timeout: timedelta | None = None,
) -> list[Todo]:
    """The newest todos, at most ``limit``; ``before`` is the last id of the page before."""
    with within(connection, timeout, "list todos"), connection.cursor(row_factory=class_row(Todo)) as cursor:
        return cursor.execute(_LIST, {"queue": queue, "state": state, "before": before, "limit": limit}).fetchall()
