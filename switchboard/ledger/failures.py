"""The one map from PostgreSQL's errors to ours: a pure function."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolTimeout

from ..errors import LedgerError, LedgerUnavailable
from ..redact import safe_text

#: The SQLSTATE classes in which PostgreSQL speaks of the very values it was given: data exception, integrity
#: constraint, program limit exceeded, an exception raised by a trigger, and internal error (an allocation it
#: refuses). All others (connection, resources, shutdown, locks, rights, a missing table) say that the ledger
#: cannot serve now, whatever it is asked.
OWN_FAULT_CLASSES = frozenset({"22", "23", "54", "P0", "XX"})

#: Those with which a connection ends: connection exception, operator intervention.
CONNECTION_CLASSES = frozenset({"08", "57"})


def translate(error: psycopg.Error | PoolTimeout, doing: str) -> LedgerError:
    """The ``LedgerError`` for what psycopg raised while ``doing``: ``LedgerUnavailable`` where it may pass."""
    message = safe_text(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is None:
        # Values that cannot even be sent have no SQLSTATE, nor have lost connections.
        own_fault = isinstance(error, psycopg.DataError)
    else:
        own_fault = sqlstate[:2] in OWN_FAULT_CLASSES
        message = f"{message} ({sqlstate})"
    if own_fault:
        return LedgerError(f"{doing}: {message}")
    unavailable = LedgerUnavailable(f"{doing}: {message}")
    unavailable.connection_lost = sqlstate is None or sqlstate[:2] in CONNECTION_CLASSES
    return unavailable
