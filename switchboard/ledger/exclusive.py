"""Locks that one process among all holds, for as long as its connection lives."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

from ..errors import LedgerError
from .connection import Connection, stay_open, within
from .pool import Ledger
from .wire import TextArray

#: How long asking for the lock, or whether it is still held, may take.
ASK_TIMEOUT = timedelta(seconds=2)

_TAKE = sql.SQL("SELECT name FROM unnest(%s) AS name WHERE pg_try_advisory_xact_lock(hashtextextended(name, 0))")
_ASK = sql.SQL("SELECT 1")


class ExclusiveLock:
    """``take`` it, ask with ``held`` before each use, ``release`` it: another process has it at once then.

    It is lost where its connection is; the server frees it by itself then. With several names it is that many locks on
    one connection, each taken where it is free. One thread uses it at a time.
    """

    def __init__(self, ledger: Ledger, *names: str) -> None:
        self._ledger = ledger
        self._names = frozenset(names)
        self._taken: frozenset[str] = frozenset()
        self._doing = f"lock {', '.join(names)}"
        self._connection: Connection | None = None

    def take(self) -> frozenset[str]:
        """The names that are ours now; raises ``LedgerUnavailable`` where the ledger does not answer."""
        wanted = self._names - self._taken
        if not wanted:
            return self._taken
        if self._connection is None:
            # Who stands by asks in the pool: a connection of its own is for who can have the lock.
            with (
                self._ledger.transaction(timeout=ASK_TIMEOUT, doing=self._doing) as tx,
                within(tx.connection, None, self._doing),
            ):
                if not self._free(tx.connection, wanted):
                    return self._taken
        connection = self._connection or self._ledger.connect()
        try:
            with within(connection, ASK_TIMEOUT, self._doing):
                if self._connection is None:
                    # A pooler in transaction mode cannot give the session to somebody else meanwhile.
                    stay_open(connection)
                self._taken |= self._free(connection, wanted)
        except LedgerError:
            self._connection = connection
            self.release()
            raise
        if not self._taken:
            connection.close()
        else:
            self._connection = connection
        return self._taken

    def held(self) -> bool:
        """Whether what was taken is still ours: the server is asked."""
        if self._connection is None:
            return False
        try:
            with within(self._connection, ASK_TIMEOUT, self._doing):
                self._connection.execute(_ASK)
        except LedgerError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Lets another process have it."""
        connection, self._connection = self._connection, None
        self._taken = frozenset()
        if connection is not None:
            connection.close()

    @staticmethod
    def _free(connection: Connection, names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for (name,) in connection.execute(_TAKE, (TextArray.of(sorted(names)),)))
