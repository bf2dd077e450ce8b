"""Table ``sessions``: people who have shown who they are, for a while."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import NotFound
from ..normalize import storable_text
from .connection import Connection, within
from .credentials import digest_of, mint, refusal, same
from .humans import get_human

#: Characters of a client's description of itself that are kept.
USER_AGENT_LENGTH = 500

_COLUMNS = sql.SQL("id, human_id, host(source_ip) AS source_ip, user_agent, created_at, expires_at")

# So that somebody who comes every day leaves one row behind, not one a day.
_FORGET_EXPIRED = sql.SQL("DELETE FROM sessions WHERE human_id = %s AND expires_at <= now()")

_BEGIN = sql.SQL("""
INSERT INTO sessions (human_id, token_hash, source_ip, user_agent, expires_at) VALUES (%s, %s, %s, %s, now() + %s)
RETURNING {}
""").format(_COLUMNS)

_BY_HASH = sql.SQL("""
SELECT token_hash, {} FROM sessions WHERE token_hash = %s AND expires_at > statement_timestamp()
""").format(_COLUMNS)

_END = sql.SQL("DELETE FROM sessions WHERE id = %s")


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as its row is, without its token's hash."""

    id: int
    human_id: int
    source_ip: str | None
    user_agent: str
    created_at: datetime
    expires_at: datetime


def begin_session(
    connection: Connection,
    human_id: int,
    *,
    lifetime: timedelta,
    source_ip: str | None = None,
    user_agent: str = "",
    timeout: timedelta | None = None,
) -> tuple[SessionRow, str]:
    """Begins a session of this person's and returns it with its token, which can never be had again.

    ``NotFound`` where nobody has that id. Sessions of theirs that have expired are deleted.
    """
    get_human(connection, human_id, timeout=timeout)
    minted = mint("session")
    values = (human_id, minted.digest, source_ip, storable_text(user_agent[:USER_AGENT_LENGTH]), lifetime)
    with within(connection, timeout, "begin session"), connection.cursor(row_factory=class_row(SessionRow)) as cursor:
        cursor.execute(_FORGET_EXPIRED, (human_id,))
        row = cursor.execute(_BEGIN, values).fetchone()
    if row is None:
        raise NotFound(f"no human {human_id}")
    return row, minted.plaintext


def authenticate_session(connection: Connection, token: str, *, timeout: timedelta | None = None) -> SessionRow:
    """The session whose token this is; ``CredentialInvalid`` for any other text, and where it has ended or expired."""
    digest = digest_of("session", token)
    with within(connection, timeout, "authenticate session"):
        row = connection.execute(_BY_HASH, (digest,)).fetchone()
    if row is None or not same(digest, row[0]):
        raise refusal("session")
    return SessionRow(*row[1:])


def end_session(connection: Connection, session_id: int, *, timeout: timedelta | None = None) -> None:
    """Ends a session: its token is refused from the commit on. ``NotFound`` where there is none."""
    with within(connection, timeout, "end session"):
        ended = connection.execute(_END, (session_id,)).rowcount
    if not ended:
        raise NotFound(f"no session {session_id}")
