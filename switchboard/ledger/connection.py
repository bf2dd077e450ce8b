"""A PostgreSQL connection on which nothing waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from ..errors import LedgerError, LedgerUnavailable
from .failures import translate

T = TypeVar("T")

#: How long a statement may take where the caller does not say.
STATEMENT_TIMEOUT = timedelta(seconds=30)

#: How long a statement may still take once the process has been told to stop; a server that answers nothing
#: gets as long again to take the cancellation before its connection is closed.
STOP_GRACE = timedelta(seconds=1)


# Those that this server has: transaction_timeout is of PostgreSQL 17.
_STAY_OPEN = sql.SQL("""
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
""")


class Stop:
    """The process's wish to end, as every statement sees it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._at = 0.0

    def set(self) -> None:
        """From now on a statement has ``STOP_GRACE`` to answer."""
        if not self._event.is_set():
            self._at = time.monotonic()
            self._event.set()

    def is_set(self) -> bool:
        """Whether the process has been told to stop."""
        return self._event.is_set()

    def limit(self, began: float) -> float:
        """The monotonic second by which a statement that ``began`` then has to give way."""
        return max(self._at, began) + STOP_GRACE.total_seconds() if self._event.is_set() else float("inf")


class Connection(psycopg.Connection[TupleRow]):
    """A psycopg connection whose statements end: by their timeout, or soon after a stop.

    The server's own ``statement_timeout`` is not enough, as a frozen server keeps no clock. At the deadline the
    statement is cancelled from a second connection; where that has no effect, this one is closed.
    """

    patience: timedelta = STATEMENT_TIMEOUT
    stop: Stop | None = None
    #: Whether this connection's transactions nudge those who wait for todos.
    notify: bool = True

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """As psycopg's ``wait`` (every statement and commit passes through it), with an end.

        Raises ``psycopg.OperationalError`` where the server gave no answer in time. ``Any`` is psycopg's: what its
        generators yield is its own affair.
        """
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        began = time.monotonic()
        deadline = began + self.patience.total_seconds()
        closing_at: float | None = None
        try:
            state = next(gen)
            while True:
                # psycopg resumes its generators several times a second even when the socket is silent.
                ready = yield state
                now = time.monotonic()
                limit = deadline if self.stop is None else min(deadline, self.stop.limit(began))
                if closing_at is None and now >= limit:
                    closing_at = now + STOP_GRACE.total_seconds()
                    with suppress(psycopg.Error, OSError):
                        self.cancel_safe(timeout=STOP_GRACE.total_seconds())
                elif closing_at is not None and now >= closing_at:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {now - began:.1f} s; the connection is closed")
                state = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def stay_open(connection: Connection) -> None:
    """Lets this transaction be long, and idle: the server's own limits of that end others, not this one."""
    connection.execute(_STAY_OPEN)


def give_way(connection: Connection, doing: str) -> None:
    """Raises ``LedgerUnavailable`` where the process has been told to stop: what goes in steps ends between two."""
    if connection.stop is not None and connection.stop.is_set():
        raise LedgerUnavailable(f"{doing}: this process is stopping")


@contextmanager
def savepoint(connection: Connection, doing: str) -> Iterator[None]:
    """What is inside is undone where it raises, and the transaction goes on; raises as ``within`` does."""
    with within(connection, None, doing), connection.transaction():
        yield


@contextmanager
def within(connection: Connection, timeout: timedelta | None, doing: str) -> Iterator[None]:
    """Runs what is inside with ``timeout`` a statement (None: the transaction's own); what psycopg raises comes out as
    a ``LedgerError``. ``doing`` opens the message: "create todo: …".
    """
    before = connection.patience
    connection.patience = timeout or before
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from error
    except UnicodeEncodeError as error:
        raise LedgerError(f"{doing}: a lone surrogate cannot be stored as text") from error
    finally:
        connection.patience = before
