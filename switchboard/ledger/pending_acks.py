"""Table ``pending_acks``: what is stored, and acknowledged at its source only when its todo has ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from psycopg import sql

from ..model import Delivery, Route
from .connection import Connection, within
from .wire import TextArray

# A todo that was there before is touched: who ends it meanwhile waits for this transaction, so that its trigger then
# sees the row below; and where its snapshot is older (REPEATABLE READ), PostgreSQL makes it begin anew.
_TOUCH = sql.SQL("""
UPDATE todos SET updated_at = now() WHERE id IN (
    SELECT id FROM todos
    WHERE queue = %(queue)s AND idempotency_key = ANY(%(keys)s) AND created_at < now()
      AND idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed'
    ORDER BY id FOR UPDATE)
""")

_LIVE = sql.SQL("""
SELECT idempotency_key, id FROM todos
WHERE queue = %(queue)s AND idempotency_key = ANY(%(keys)s)
  AND idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed'
""")

_NOTE = sql.SQL("""
INSERT INTO pending_acks (adapter, handle, todo_id)
SELECT %(adapter)s, handle, todo_id FROM unnest(%(handles)s, %(todo_ids)s::bigint[]) AS noted (handle, todo_id)
ON CONFLICT (adapter, handle) DO UPDATE SET todo_id = excluded.todo_id, ready = false
""")

_READY = sql.SQL("""
SELECT id, handle FROM pending_acks WHERE adapter = %s AND ready ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
""")

_FORGET = sql.SQL("DELETE FROM pending_acks WHERE id = ANY(%s)")


def note_pending_acks(
    connection: Connection,
    route: Route,
    keyed: Sequence[tuple[str, Delivery]],
    *,
    timeout: timedelta | None = None,
) -> list[Delivery]:
    """Notes each delivery whose todo, known by its idempotency key, has not ended, and returns those.

    In the transaction that stored them; the others are to be acknowledged after it.
    """
    with within(connection, timeout, "note pending acknowledgements"):
        keys = TextArray.of(key for key, _ in keyed)
        which = {"queue": route.queue, "keys": keys}
        connection.execute(_TOUCH, which)
        live: dict[str, int] = dict(connection.execute(_LIVE, which).fetchall())
        parked = [(delivery, live[key]) for key, delivery in keyed if key in live]
        if parked:
            noted = {
                "adapter": route.adapter,
                "handles": TextArray.of(delivery.handle for delivery, _ in parked),
                "todo_ids": [todo_id for _, todo_id in parked],
            }
            connection.execute(_NOTE, noted)
    return [delivery for delivery, _ in parked]


def ready_acks(
    connection: Connection, adapter: str, *, limit: int, timeout: timedelta | None = None
) -> list[tuple[int, str]]:
    """Id and handle of acknowledgements whose todo has ended; nobody else gets them in this transaction's time."""
    with within(connection, timeout, "ready acknowledgements"):
        return connection.execute(_READY, (adapter, limit)).fetchall()


def forget_acks(connection: Connection, ids: Sequence[int], *, timeout: timedelta | None = None) -> None:
    """Removes those that are acknowledged."""
    with within(connection, timeout, "forget acknowledgements"):
        connection.execute(_FORGET, (list(ids),))
