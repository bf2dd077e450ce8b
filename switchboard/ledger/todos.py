"""Table ``todos``: the durable work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row, scalar_row

from ..errors import LedgerUnavailable, NotFound
from ..model import TodoRow, TodoState, type_json
from ..normalize import storable_text
from .connection import Connection, within
from .notify import notify_ready
from .wire import JsonbArray, TextArray, as_jsonb

TODO_COLUMNS = sql.SQL(
    "id, queue, source, kind, title, payload, event_id, idempotency_key, assignee, state, owner, "
    "lease_expires_at, attempt, max_attempts, result, last_error, created_at, updated_at, claimed_at, completed_at"
)

_LIVE = sql.SQL("idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed'")

_CREATE = sql.SQL("""
INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key, assignee, max_attempts)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (queue, idempotency_key) WHERE {live} DO NOTHING
RETURNING {columns}
""").format(live=_LIVE, columns=TODO_COLUMNS)

# Ordered by key, as two sessions that insert the same keys in different orders deadlock.
_CREATE_MANY = sql.SQL("""
INSERT INTO todos (queue, source, kind, title, payload, idempotency_key)
SELECT %(queue)s, %(source)s, kind, title, payload, key
FROM unnest(%(titles)s, %(kinds)s, %(payloads)s, %(keys)s) WITH ORDINALITY AS new (title, kind, payload, key, n)
ORDER BY key, n
ON CONFLICT (queue, idempotency_key) WHERE {live} DO NOTHING
RETURNING id
""").format(live=_LIVE)

_LIVE_TWIN = sql.SQL("SELECT {columns} FROM todos WHERE queue = %s AND idempotency_key = %s AND {live}").format(
    columns=TODO_COLUMNS, live=_LIVE
)

_GET = sql.SQL("SELECT {} FROM todos WHERE id = %s").format(TODO_COLUMNS)

# Newest first, by primary key: each page begins where the one before ended. States that few todos are in are found by
# their partial index, a live todo's key by idx_todos_dedupe. Any other filter is looked at row by row, from the newest
# on, until the page is full: one that nothing matches reads the table (some 0.3 s a million todos).
_LIST = sql.SQL("SELECT {columns} FROM todos WHERE {matching} ORDER BY id DESC LIMIT %(limit)s")

# Matches still, and stays so until this transaction ends.
_LOCK = sql.SQL("SELECT id FROM todos WHERE id = %(id)s AND {matching} FOR UPDATE")

_CONDITIONS = {
    "queue": sql.SQL("queue = %(queue)s"),
    "states": sql.SQL("state = ANY(%(states)s)"),
    "kind": sql.SQL("kind = %(kind)s"),
    "idempotency_key": sql.SQL("idempotency_key = %(idempotency_key)s"),
    "created_before": sql.SQL("created_at < %(created_before)s"),
    "created_since": sql.SQL("created_at >= %(created_since)s"),
    "before": sql.SQL("id < %(before)s"),
}

# Each half has an index of its own, which this lets PostgreSQL put together.
_CLAIMED = sql.SQL("(owner IS NULL OR owner IS NOT NULL)")


@dataclass(frozen=True, slots=True)
class NewTodo:
    """A todo to be made; ``payload`` is any value ``json`` can write."""

    title: str
    payload: type_json = None
    kind: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoFilter:
    """Which todos are meant: those that every field that is set agrees with; ``states`` is any of these."""

    queue: str | None = None
    states: Sequence[TodoState] = ()
    kind: str | None = None
    idempotency_key: str | None = None
    created_before: datetime | None = None
    created_since: datetime | None = None

    def values(self) -> dict[str, object]:
        """What is set, by field."""
        fields = ("queue", "kind", "idempotency_key", "created_before", "created_since")
        given: dict[str, object] = {name: value for name in fields if (value := getattr(self, name)) is not None}
        return given | ({"states": list(self.states)} if self.states else {})


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
) -> tuple[TodoRow, bool]:
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
    with within(connection, timeout, "create todo"), connection.cursor(row_factory=class_row(TodoRow)) as cursor:
        # Twice: between the two statements the live twin may have been done, and its key be free again.
        for _ in range(2):
            if made := cursor.execute(_CREATE, values).fetchone():
                notify_ready(connection, {queue})
                return made, True
            if twin := cursor.execute(_LIVE_TWIN, (queue, idempotency_key)).fetchone():
                return twin, False
    raise LedgerUnavailable("create todo: its live twin changed state twice in the meantime; try again")


def create_todos(
    connection: Connection,
    todos: Sequence[NewTodo],
    *,
    queue: str,
    source: str = "",
    timeout: timedelta | None = None,
) -> list[int]:
    """Makes pending todos of one queue in one statement; returns the ids of those that are new.

    One whose key a live todo of the queue has is not made (SPEC-0002). Raises ``ValueError`` or ``TypeError`` for a
    payload that JSON cannot say, and makes none then. A few thousand at a time: all of them are sent together.
    """
    values = {
        "queue": queue,
        "source": source,
        "titles": TextArray.of(storable_text(todo.title) for todo in todos),
        "kinds": TextArray.of(storable_text(todo.kind) for todo in todos),
        "payloads": JsonbArray([as_jsonb(todo.payload).encode() for todo in todos]),
        "keys": TextArray.of(todo.idempotency_key for todo in todos),
    }
    with within(connection, timeout, "create todos"):
        made = [row[0] for row in connection.execute(_CREATE_MANY, values)]
        if made:
            notify_ready(connection, {queue})
    return made


def get_todo(connection: Connection, todo_id: int, *, timeout: timedelta | None = None) -> TodoRow:
    """The todo with that id; ``NotFound`` where there is none."""
    with within(connection, timeout, "get todo"), connection.cursor(row_factory=class_row(TodoRow)) as cursor:
        todo = cursor.execute(_GET, (todo_id,)).fetchone()
    if todo is None:
        raise NotFound(f"no todo {todo_id}")
    return todo


def list_todos(
    connection: Connection,
    *,
    queue: str | None = None,
    state: TodoState | None = None,
    kind: str | None = None,
    idempotency_key: str | None = None,
    created_before: datetime | None = None,
    created_since: datetime | None = None,
    before: int | None = None,
    limit: int = 50,
    timeout: timedelta | None = None,
) -> list[TodoRow]:
    """The newest todos that all filters agree with, at most ``limit``; ``before`` is the last id of the page before.

    ``created_before`` and ``created_since`` are times of the database's clock (``database_time``).
    """
    where = TodoFilter(
        queue=queue,
        states=() if state is None else (state,),
        kind=kind,
        idempotency_key=idempotency_key,
        created_before=created_before,
        created_since=created_since,
    )
    statement, values = _page(TODO_COLUMNS, where, before, limit)
    with within(connection, timeout, "list todos"), connection.cursor(row_factory=class_row(TodoRow)) as cursor:
        return cursor.execute(statement, values).fetchall()


def select_todos(
    connection: Connection,
    where: TodoFilter,
    *,
    before: int | None = None,
    limit: int,
    timeout: timedelta | None = None,
) -> list[int]:
    """The ids of what ``list_todos`` shows with the same filter, without its payloads: a page may be gigabytes."""
    statement, values = _page(sql.SQL("id"), where, before, limit)
    with within(connection, timeout, "select todos"):
        return [row[0] for row in connection.execute(statement, values)]


def lock_todo(connection: Connection, todo_id: int, where: TodoFilter, *, timeout: timedelta | None = None) -> bool:
    """Whether this todo matches the filter; if so nobody else changes it while this transaction is open."""
    statement, values = _matching(_LOCK, where.values())
    with within(connection, timeout, "lock todo"):
        return connection.execute(statement, values | {"id": todo_id}).fetchone() is not None


def database_time(connection: Connection, *, timeout: timedelta | None = None) -> datetime:
    """The database's own clock, at the begin of this transaction: what ``created_at`` and its like are set by."""
    with within(connection, timeout, "read the clock"), connection.cursor(row_factory=scalar_row) as cursor:
        now: datetime | None = cursor.execute("SELECT now()").fetchone()
    if now is None:
        raise LedgerUnavailable("read the clock: no answer")
    return now


def _page(
    columns: sql.SQL, where: TodoFilter, before: int | None, limit: int
) -> tuple[sql.Composed, dict[str, object]]:
    given = where.values() | ({} if before is None else {"before": before})
    statement, values = _matching(_LIST, given, columns)
    return statement, values | {"limit": limit}


def _matching(
    statement: sql.SQL, given: dict[str, object], columns: sql.SQL = TODO_COLUMNS
) -> tuple[sql.Composed, dict[str, object]]:
    """The statement with the conditions that are given alone, so that its plan can use what index each has."""
    conditions: list[sql.Composable] = [_CONDITIONS[name] for name in given]
    if given.get("states") == ["claimed"]:
        conditions.append(_CLAIMED)
    matching = sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")
    return statement.format(columns=columns, matching=matching), given
