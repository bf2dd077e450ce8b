"""The ledger as a command uses it: opened for one answer, then closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from ..errors import LedgerError
from ..ledger import Connection, Ledger

#: SQLSTATEs of a table or a column that a migration would have made.
_NOT_MIGRATED = ("42P01", "42703")


@contextmanager
def open_ledger() -> Iterator[Ledger]:
    """The ledger at ``DATABASE_URL``, closed afterwards."""
    ledger = Ledger.from_environment()
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def ledger_connection(doing: str, timeout: timedelta | None = None, *, dry_run: bool = False) -> Iterator[Connection]:
    """The connection of one transaction, which is taken back where it is a ``dry_run``."""
    with (
        open_ledger() as ledger,
        says_not_migrated(doing),
        ledger.transaction(timeout=timeout, doing=doing, dry_run=dry_run) as transaction,
    ):
        yield transaction.connection


@contextmanager
def says_not_migrated(doing: str) -> Iterator[None]:
    """A table or column that is missing inside is an error that says what to run."""
    try:
        yield
    except LedgerError as error:
        if getattr(error.__cause__, "sqlstate", None) in _NOT_MIGRATED:
            raise LedgerError(f"{doing}: the database is not migrated; run `switchboard migrate`") from error
        raise
