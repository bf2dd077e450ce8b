"""Migrations: plain SQL files in the package, applied once each, in the order of their names (SPEC-0004)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from importlib.resources.abc import Traversable

import psycopg
from psycopg import sql

from ..errors import LedgerError, LedgerUnavailable
from .connection import within
from .failures import translate
from .pool import Ledger

logger = logging.getLogger(__name__)

#: How long one statement of a migration may take, waiting for another process's migration included.
MIGRATION_TIMEOUT = timedelta(minutes=15)

# Of the transaction, so that it works through a pooler; many processes start together on an empty database.
_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(hashtext('switchboard.migrate'))")
_TABLE = sql.SQL("""
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)
""")
_EXISTS = sql.SQL("SELECT to_regclass('schema_migrations') IS NOT NULL")
_APPLIED = sql.SQL("SELECT version FROM schema_migrations")
_RECORD = sql.SQL("INSERT INTO schema_migrations (version) VALUES (%s)")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its version is its name without ``.sql``."""

    version: str
    statements: str


def shipped_migrations(folder: Traversable | None = None) -> Iterator[Migration]:
    """The migrations in the package (or in ``folder``), in lexical order."""
    folder = folder or resources.files("switchboard") / "migrations"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            yield Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))


def migrate(ledger: Ledger, folder: Traversable | None = None) -> list[str]:
    """Applies what the database lacks, each migration in a transaction with its row in ``schema_migrations``.

    Returns the versions applied by this call. Raises ``LedgerError`` naming the migration that failed, which is
    rolled back whole, and ``LedgerUnavailable`` where the ledger is away.
    """
    applied = []
    known = _known(ledger)
    for migration in shipped_migrations(folder):
        if migration.version not in known and _apply(ledger, migration):
            logger.info("applied migration %s", migration.version)
            applied.append(migration.version)
    return applied


def _known(ledger: Ledger) -> set[str]:
    doing = "db: migrate"
    with ledger.transaction(doing=doing) as transaction, within(transaction.connection, None, doing):
        connection = transaction.connection
        if not (connection.execute(_EXISTS).fetchone() or [False])[0]:
            return set()
        return {row[0] for row in connection.execute(_APPLIED)}


def _apply(ledger: Ledger, migration: Migration) -> bool:
    doing = f"db: migration {migration.version}"
    with ledger.transaction(timeout=MIGRATION_TIMEOUT, doing=doing) as transaction:
        connection = transaction.connection
        try:
            connection.execute(_LOCK)
            connection.execute(_TABLE)
            if migration.version in {row[0] for row in connection.execute(_APPLIED)}:
                return False
            # The file is the package's own text, never a caller's.
            connection.execute(migration.statements.encode())
            connection.execute(_RECORD, (migration.version,))
        except psycopg.Error as error:
            failure = translate(error, doing)
            if isinstance(failure, LedgerUnavailable) and error.sqlstate is not None:
                # A migration that PostgreSQL refuses is a verdict, whatever class its SQLSTATE is of.
                raise LedgerError(str(failure)) from error
            raise failure from error
    return True
