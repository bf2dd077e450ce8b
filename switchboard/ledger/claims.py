"""The life of a todo, ``pending -> claimed -> done | failed`` and back: each move is a statement that checks its state.

An ``owner`` names a worker and one claim of its, and fences what that claim may still do: whoever lost its lease to
another gets ``Conflict``, and nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from ..errors import Conflict, LedgerError
from ..model import JsonText, TodoRow, TodoState, type_json
from ..redact import safe_text
from .connection import Connection, savepoint, within
from .notify import notify_ready
from .todos import TODO_COLUMNS, get_todo
from .wire import BigintArray, TextArray, as_jsonb

#: How long a claim holds without a heartbeat.
LEASE = timedelta(minutes=5)

#: Rows one requeuing takes back at most: what it gives back can be claimed while the rest is still to come.
REQUEUE_STEP = 1_000

# The fenced CTE, with its LIMIT inside, keeps the scan on idx_todos_pending (pgqueuer#667, good_job#720).
_CLAIM = sql.SQL("""
WITH chosen AS MATERIALIZED (
    SELECT id FROM todos
    WHERE queue = %(queue)s AND state = 'pending' AND (assignee IS NULL OR assignee = %(assignee)s)
    ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE todos SET state = 'claimed', owner = %(owner)s, lease_expires_at = now() + %(lease)s,
                     claimed_at = now(), attempt = attempt + 1, updated_at = now()
    WHERE id IN (SELECT id FROM chosen)
    RETURNING {columns}
)
SELECT * FROM claimed ORDER BY created_at, id
""").format(columns=TODO_COLUMNS)

# Touches no indexed column, so that the row's index entries stay as they are.
_HEARTBEAT = sql.SQL("""
UPDATE todos SET lease_expires_at = now() + %(lease)s
FROM unnest(%(ids)s, %(owners)s) AS held (id, owner)
WHERE todos.id = held.id AND todos.owner = held.owner AND state = 'claimed'
RETURNING todos.id
""")

# Whoever locks one row must not cost its neighbours their leases.
_HEARTBEAT_UNLOCKED = sql.SQL("""
WITH free AS MATERIALIZED (
    SELECT todos.id FROM todos JOIN unnest(%(ids)s, %(owners)s) AS held (id, owner)
        ON todos.id = held.id AND todos.owner = held.owner
    WHERE state = 'claimed' FOR UPDATE OF todos SKIP LOCKED
)
UPDATE todos SET lease_expires_at = now() + %(lease)s WHERE id IN (SELECT id FROM free)
RETURNING id
""")

_STILL_HELD = sql.SQL("""
SELECT todos.id FROM todos JOIN unnest(%(ids)s, %(owners)s) AS held (id, owner)
    ON todos.id = held.id AND todos.owner = held.owner
WHERE state = 'claimed'
""")

_COMPLETE = sql.SQL("""
UPDATE todos SET state = 'done', result = ended.result::jsonb, last_error = NULL, lease_expires_at = NULL,
                 completed_at = now(), updated_at = now()
FROM unnest(%(ids)s, %(owners)s, %(results)s) AS ended (id, owner, result)
WHERE todos.id = ended.id AND todos.owner = ended.owner AND state = 'claimed'
RETURNING todos.id
""")

_FAIL = sql.SQL("""
UPDATE todos SET
    state = CASE WHEN %(final)s OR attempt >= max_attempts THEN 'failed' ELSE 'claimed' END,
    lease_expires_at = CASE WHEN %(final)s OR attempt >= max_attempts THEN NULL ELSE now() + %(retry_in)s END,
    completed_at = CASE WHEN %(final)s OR attempt >= max_attempts THEN now() END,
    owner = NULL, last_error = %(error)s, updated_at = now()
WHERE id = %(id)s AND owner = %(owner)s AND state = 'claimed'
RETURNING {columns}
""").format(columns=TODO_COLUMNS)

_RELEASE = sql.SQL("""
UPDATE todos SET state = CASE WHEN %(wait)s::interval IS NULL THEN 'pending' ELSE 'claimed' END,
                 lease_expires_at = now() + %(wait)s::interval, owner = NULL, claimed_at = NULL,
                 attempt = greatest(0, attempt - 1), updated_at = now()
FROM unnest(%(ids)s, %(owners)s) AS held (id, owner)
WHERE todos.id = held.id AND todos.owner = held.owner AND state = 'claimed'
RETURNING todos.id, queue
""")

_RETRY = sql.SQL("""
UPDATE todos SET state = 'pending', attempt = 0, owner = NULL, lease_expires_at = NULL, claimed_at = NULL,
                 completed_at = NULL, result = NULL, updated_at = now()
WHERE id = %s AND state IN ('done', 'failed')
RETURNING {columns}
""").format(columns=TODO_COLUMNS)

_CANCEL = sql.SQL("""
UPDATE todos SET state = 'failed', last_error = 'cancelled', owner = NULL, lease_expires_at = NULL,
                 completed_at = now(), updated_at = now()
WHERE id = %s AND state IN ('pending', 'claimed')
RETURNING {columns}
""").format(columns=TODO_COLUMNS)

# One rule for waiting retries and dead workers alike. A worker that died in the last attempt leaves no further one.
_REQUEUE = """
WITH waiting AS MATERIALIZED (
    SELECT id FROM todos WHERE {queue} state = 'claimed' AND owner IS NULL AND retry_at <= now()
    ORDER BY queue, retry_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), lapsed AS MATERIALIZED (
    SELECT id FROM todos WHERE {queue} state = 'claimed' AND owner IS NOT NULL AND lease_expires_at <= now()
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE todos SET
    state = CASE WHEN attempt >= max_attempts THEN 'failed' ELSE 'pending' END,
    completed_at = CASE WHEN attempt >= max_attempts THEN now() END,
    last_error = CASE WHEN owner IS NULL THEN last_error ELSE 'the lease of ' || owner || ' ran out' END,
    owner = NULL, lease_expires_at = NULL, claimed_at = NULL, updated_at = now()
WHERE id IN (SELECT id FROM waiting UNION ALL SELECT id FROM lapsed)
  AND state = 'claimed' AND lease_expires_at <= now()
RETURNING id, queue, state
"""
_REQUEUE_ALL = sql.SQL(_REQUEUE).format(queue=sql.SQL(""))
_REQUEUE_QUEUE = sql.SQL(_REQUEUE).format(queue=sql.SQL("queue = %(queue)s AND"))


# Each half of owner's condition is a partial index, which PostgreSQL puts together.
_COUNT_EXPIRED = sql.SQL("""
SELECT count(*) FILTER (WHERE attempt < max_attempts), count(*) FILTER (WHERE attempt >= max_attempts)
FROM todos WHERE state = 'claimed' AND (owner IS NULL OR owner IS NOT NULL) AND lease_expires_at <= now()
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
""")


@dataclass(frozen=True, slots=True)
class Requeued:
    """How many leases had run out, by what became of their todos."""

    pending: int = 0
    failed: int = 0


def claim_todos(
    connection: Connection,
    queue: str,
    *,
    worker: str,
    limit: int,
    lease: timedelta = LEASE,
    assignee: str | None = None,
    timeout: timedelta | None = None,
) -> list[TodoRow]:
    """Claims the oldest pending todos of a queue, at most ``limit``, and returns them, oldest first.

    Their ``owner`` is ``worker`` and a token of this claim; give it to what ends them. A todo with an assignee is
    claimed by that one alone.
    """
    return [
        TodoRow(*row)
        for row in claim_rows(
            connection, queue, worker=worker, limit=limit, lease=lease, assignee=assignee, timeout=timeout
        )
    ]


def claim_rows(
    connection: Connection,
    queue: str,
    *,
    worker: str,
    limit: int,
    lease: timedelta = LEASE,
    assignee: str | None = None,
    timeout: timedelta | None = None,
) -> list[tuple[Any, ...]]:
    """As ``claim_todos``; each todo is a tuple of ``TodoRow``'s fields, for whoever makes something else of them."""
    claim = {
        "queue": queue,
        "assignee": assignee,
        "limit": limit,
        "owner": f"{worker}:{uuid4().hex}",
        "lease": lease,
    }
    with within(connection, timeout, f"claim todos of {queue}"):
        return connection.execute(_CLAIM, claim).fetchall()


def claim_todo(
    connection: Connection,
    queue: str,
    *,
    worker: str,
    lease: timedelta = LEASE,
    assignee: str | None = None,
    timeout: timedelta | None = None,
) -> TodoRow | None:
    """Claims the oldest pending todo of a queue, as ``claim_todos`` does; None where there is none."""
    claimed = claim_todos(connection, queue, worker=worker, limit=1, lease=lease, assignee=assignee, timeout=timeout)
    return claimed[0] if claimed else None


def extend_leases(
    connection: Connection,
    held: Sequence[tuple[int, str]],
    *,
    lease: timedelta = LEASE,
    skip_locked: bool = False,
    timeout: timedelta | None = None,
) -> set[int]:
    """Extends the leases of these ids and owners to ``lease`` from now; returns the ids that are still theirs.

    With ``skip_locked`` a row that somebody else has locked keeps the lease it has.
    """
    values = {
        "ids": BigintArray.of(todo_id for todo_id, _ in held),
        "owners": TextArray.of(owner for _, owner in held),
        "lease": lease,
    }
    with within(connection, timeout, "extend leases"):
        if not skip_locked:
            return {row[0] for row in connection.execute(_HEARTBEAT, values)}
        extended = {row[0] for row in connection.execute(_HEARTBEAT_UNLOCKED, values)}
        if len(extended) < len(held):
            extended |= {row[0] for row in connection.execute(_STILL_HELD, values)}
        return extended


def heartbeat(
    connection: Connection,
    todo_id: int,
    owner: str,
    *,
    lease: timedelta = LEASE,
    timeout: timedelta | None = None,
) -> None:
    """Extends one lease to ``lease`` from now; ``Conflict`` where it is another's, ``NotFound`` where there is none."""
    if not extend_leases(connection, [(todo_id, owner)], lease=lease, timeout=timeout):
        _refuse(connection, todo_id, "heartbeat", timeout)


def complete_todos(
    connection: Connection,
    ended: Sequence[tuple[int, str, JsonText | None]],
    *,
    timeout: timedelta | None = None,
) -> set[int]:
    """Marks these (id, owner, result) as done, in one statement; returns the ids that were still their owners'."""
    values = {
        "ids": BigintArray.of(todo_id for todo_id, _, _ in ended),
        "owners": TextArray.of(owner for _, owner, _ in ended),
        "results": TextArray.of(result for _, _, result in ended),
    }
    with within(connection, timeout, "complete todos"):
        return {row[0] for row in connection.execute(_COMPLETE, values)}


def complete_todo(
    connection: Connection,
    todo_id: int,
    owner: str,
    *,
    result: type_json = None,
    timeout: timedelta | None = None,
) -> None:
    """Marks a todo as done with its ``result``, any value ``json`` can write.

    ``Conflict`` where the claim of ``owner`` is not the present one, ``NotFound`` where there is no such todo;
    ``ValueError`` or ``TypeError`` for a result that JSON cannot say.
    """
    text = None if result is None else JsonText(as_jsonb(result))
    if not complete_todos(connection, [(todo_id, owner, text)], timeout=timeout):
        _refuse(connection, todo_id, "complete", timeout)


def fail_todo(
    connection: Connection,
    todo_id: int,
    owner: str,
    *,
    error: BaseException | str,
    retry_in: timedelta,
    final: bool = False,
    timeout: timedelta | None = None,
) -> TodoRow:
    """Ends an attempt: the todo waits for ``retry_in`` and is pending again, or is failed in its last attempt, or at
    once where it is ``final``.

    The error's text is made safe to store. ``Conflict`` and ``NotFound`` as for ``complete_todo``.
    """
    values = {
        "id": todo_id,
        "owner": owner,
        "error": safe_text(error, limit=2_000),
        "retry_in": retry_in,
        "final": final,
    }
    row = _one(connection, _FAIL, values, "fail todo", timeout)
    return row if row is not None else _refuse(connection, todo_id, "fail", timeout)


def release_todos(
    connection: Connection,
    held: Sequence[tuple[int, str]],
    *,
    wait: timedelta | None = None,
    timeout: timedelta | None = None,
) -> set[int]:
    """Returns these ids and owners to ``pending`` as if they had not been claimed, at once or after ``wait``: no
    attempt is spent.

    Returns the ids that were still their owners'.
    """
    values = {
        "ids": BigintArray.of(todo_id for todo_id, _ in held),
        "owners": TextArray.of(owner for _, owner in held),
        "wait": wait,
    }
    with within(connection, timeout, "release todos"):
        released = connection.execute(_RELEASE, values).fetchall()
        if wait is None:
            notify_ready(connection, {queue for _, queue in released})
    return {todo_id for todo_id, _ in released}


def retry_todo(connection: Connection, todo_id: int, *, timeout: timedelta | None = None) -> TodoRow:
    """Makes a done or failed todo pending again, with all its attempts.

    ``Conflict`` where it is neither, or where its key has a live twin; ``NotFound`` where there is no such todo.
    """
    try:
        with savepoint(connection, "retry todo"):
            row = _one(connection, _RETRY, (todo_id,), "retry todo", timeout)
    except LedgerError as error:
        if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
            raise
        todo = get_todo(connection, todo_id, timeout=timeout)
        raise Conflict(
            f"todo {todo_id}: another todo of queue {todo.queue!r} with its key {todo.idempotency_key!r} is live"
        ) from error
    if row is None:
        _refuse(connection, todo_id, "retry", timeout)
    with within(connection, timeout, "retry todo"):
        notify_ready(connection, {row.queue})
    return row


def cancel_todo(connection: Connection, todo_id: int, *, timeout: timedelta | None = None) -> TodoRow:
    """Makes a pending or claimed todo failed, with the error "cancelled"; who works on it cannot complete it.

    ``Conflict`` where it has ended, ``NotFound`` where there is no such todo.
    """
    row = _one(connection, _CANCEL, (todo_id,), "cancel todo", timeout)
    return row if row is not None else _refuse(connection, todo_id, "cancel", timeout)


def reap_expired(
    connection: Connection, *, queue: str | None = None, limit: int = REQUEUE_STEP, timeout: timedelta | None = None
) -> Requeued:
    """Requeues todos whose lease has run out, of one queue or of all: retries whose wait is over, and what dead workers
    held. At most ``limit`` of either kind; one that ran out in its last attempt is failed.
    """
    statement = _REQUEUE_ALL if queue is None else _REQUEUE_QUEUE
    with within(connection, timeout, "requeue expired todos"):
        rows = connection.execute(statement, {"queue": queue, "limit": limit}).fetchall()
        notify_ready(connection, {name for _, name, state in rows if state == "pending"})
    pending = sum(state == "pending" for _, _, state in rows)
    return Requeued(pending=pending, failed=len(rows) - pending)


def count_expired(connection: Connection, *, queue: str | None = None, timeout: timedelta | None = None) -> Requeued:
    """What ``reap_expired`` would requeue, and fail, with no limit."""
    with within(connection, timeout, "count expired todos"):
        row = connection.execute(_COUNT_EXPIRED, {"queue": queue}).fetchone()
    return Requeued(*row) if row else Requeued()


#: What each move is from, for the sentence that refuses it.
_FROM: dict[str, tuple[TodoState, ...]] = {
    "heartbeat": ("claimed",),
    "complete": ("claimed",),
    "fail": ("claimed",),
    "retry": ("done", "failed"),
    "cancel": ("pending", "claimed"),
}


def _refuse(connection: Connection, todo_id: int, move: str, timeout: timedelta | None) -> NoReturn:
    """Says why a move was refused; ``NotFound`` comes from the look-up."""
    todo = get_todo(connection, todo_id, timeout=timeout)
    if todo.state in _FROM[move]:
        raise Conflict(f"{move} todo {todo_id}: its lease is another's now")
    raise Conflict(f"{move} todo {todo_id}: it is {todo.state}, expected {' or '.join(_FROM[move])}")


def _one(
    connection: Connection,
    statement: sql.Composed,
    values: dict[str, object] | tuple[object, ...],
    doing: str,
    timeout: timedelta | None,
) -> TodoRow | None:
    with within(connection, timeout, doing), connection.cursor(row_factory=class_row(TodoRow)) as cursor:
        return cursor.execute(statement, values).fetchone()
