"""When the ledger is away for everybody, and not for one request alone."""

from __future__ import annotations

from psycopg.errors import QueryCanceled

from ..errors import LedgerUnavailable


def is_away(error: LedgerUnavailable) -> bool:
    """Whether the next request would fare no better: the server did not answer.

    A statement that was cancelled for its time is no sign of that: it waited, as a rule, for what somebody had locked.
    """
    return error.connection_lost and not isinstance(error.__cause__, QueryCanceled)
