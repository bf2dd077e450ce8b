"""A lock that one process among all holds, for as long as its connection lives."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

from ..errors import LedgerError
from .connection import Connection, within
from .pool import Ledger

#: How long asking for the lock, or whether it is still held, may take.
ASK_TIMEOUT = timedelta(seconds=2)

# Of a transaction that stays open, so that a pooler in transaction mode cannot give the session to somebody else.
_BEGIN = sql.SQL("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
_TAKE = sql.SQL("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))")
_ASK = sql.SQL("SELECT 1")


class ExclusiveLock:
    """``take`` it, ask with ``held`` before each use, ``release`` it: another process has it at once then.

    It is lost where its connection is; the server frees it by itself then. One thread uses it at a time.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._connection: Connection | None = None

    def take(self) -> bool:
        """Whether it is ours now; raises ``LedgerUnavailable`` where the ledger does not answer."""
        if self._connection is not None:
            return True
        connection = self._ledger.connect()
        try:
            with within(connection, ASK_TIMEOUT, f"lock {self._name}"):
                connection.execute(_BEGIN)
                row = connection.execute(_TAKE, (self._name,)).fetchone()
        except LedgerError:
            connection.close()
            raise
        if row is None or not row[0]:
            connection.close()
            return False
        self._connection = connection
        return True

    def held(self) -> bool:
        """Whether it is still ours: the server is asked."""
        if self._connection is None:
            return False
        try:
            with within(self._connection, ASK_TIMEOUT, f"lock {self._name}"):
                self._connection.execute(_ASK)
        except LedgerError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Lets another process have it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
