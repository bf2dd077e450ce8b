"""Channel ``todo_ready``: a nudge with a queue's name. The tables are the truth; a nudge that is lost costs latency.

NOTIFY takes one global lock at commit, so there is at most one a queue and transaction, and none where it is off
(river#301, graphile#559): PostgreSQL itself folds equal ones of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from .connection import Connection, within

#: The channel's name (SPEC-0004, In-Database Wakeups).
CHANNEL = "todo_ready"

_NOTIFY = sql.SQL("SELECT pg_notify({}, queue) FROM unnest(%s::text[]) AS ready (queue)").format(sql.Literal(CHANNEL))

_LISTEN = sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL))

_ASK = sql.SQL("SELECT 1")


def notify_ready(connection: Connection, queues: Iterable[str]) -> None:
    """Nudges whoever waits for todos of these queues, once this transaction has committed."""
    names = sorted(set(queues))
    if names and connection.notify:
        connection.execute(_NOTIFY, (names,))


def listen(connection: Connection) -> None:
    """From now on the connection, which commits by itself, hears of todos that are ready."""
    with within(connection, None, "listen"):
        connection.execute(_LISTEN)


def heard(connection: Connection, timeout_seconds: float) -> list[str]:
    """The queues that are announced within the time, in order, none twice; returns with the first announcement.

    Raises ``LedgerUnavailable`` where the connection is lost.
    """
    with within(connection, None, "listen"):
        return list(dict.fromkeys(each.payload for each in connection.notifies(timeout=timeout_seconds, stop_after=1)))


def ask(connection: Connection) -> None:
    """Asks the server whether it is still there; raises ``LedgerUnavailable`` where no answer comes."""
    with within(connection, None, "listen"):
        connection.execute(_ASK)
