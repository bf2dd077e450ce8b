"""Table ``agents``: programs that people answer for. What an agent may do is its endpoints'."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import Conflict, NotFound
from .connection import Connection, within
from .humans import get_human

_COLUMNS = sql.SQL("a.id, a.owner_id, h.email AS owner, a.name, a.created_at, a.revoked_at")

_ADD = sql.SQL("""
WITH a AS (
    INSERT INTO agents (owner_id, name) VALUES (%s, %s)
    ON CONFLICT (owner_id, name) WHERE revoked_at IS NULL DO NOTHING RETURNING *)
SELECT {} FROM a JOIN humans h ON h.id = a.owner_id
""").format(_COLUMNS)

_GET = sql.SQL("SELECT {} FROM agents a JOIN humans h ON h.id = a.owner_id WHERE a.id = %s").format(_COLUMNS)

_LIST = sql.SQL("""
SELECT {} FROM agents a JOIN humans h ON h.id = a.owner_id
WHERE (%(owner_id)s::bigint IS NULL OR a.owner_id = %(owner_id)s)
  AND (%(revoked)s OR a.revoked_at IS NULL)
ORDER BY a.name, a.id
""").format(_COLUMNS)

# Its endpoints' rows are left as they are: what is in force is decided by both.
_REVOKE = sql.SQL("""
WITH a AS (UPDATE agents SET revoked_at = now() WHERE id = %s AND revoked_at IS NULL RETURNING *)
SELECT {} FROM a JOIN humans h ON h.id = a.owner_id
""").format(_COLUMNS)


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent as its row is, with its owner's address."""

    id: int
    owner_id: int
    owner: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


def add_agent(connection: Connection, *, owner_id: int, name: str, timeout: timedelta | None = None) -> AgentRow:
    """Adds an agent of this person's.

    Raises ``NotFound`` where nobody has that id, and ``Conflict`` where they have an agent of this name that is not
    revoked.
    """
    owner = get_human(connection, owner_id, timeout=timeout)
    with within(connection, timeout, "add agent"), connection.cursor(row_factory=class_row(AgentRow)) as cursor:
        row = cursor.execute(_ADD, (owner_id, name)).fetchone()
    if row is None:
        raise Conflict(f"{owner.email} has an agent {name} already")
    return row


def get_agent(connection: Connection, agent_id: int, *, timeout: timedelta | None = None) -> AgentRow:
    """The agent with that id; ``NotFound`` where there is none."""
    with within(connection, timeout, "get agent"), connection.cursor(row_factory=class_row(AgentRow)) as cursor:
        row = cursor.execute(_GET, (agent_id,)).fetchone()
    if row is None:
        raise NotFound(f"no agent {agent_id}")
    return row


def list_agents(
    connection: Connection,
    *,
    owner_id: int | None = None,
    revoked: bool = False,
    timeout: timedelta | None = None,
) -> list[AgentRow]:
    """The agents of this owner, or of all, by name; those revoked too where ``revoked``."""
    with within(connection, timeout, "list agents"), connection.cursor(row_factory=class_row(AgentRow)) as cursor:
        return cursor.execute(_LIST, {"owner_id": owner_id, "revoked": revoked}).fetchall()


def revoke_agent(connection: Connection, agent_id: int, *, timeout: timedelta | None = None) -> AgentRow:
    """Ends an agent: the credentials of all its endpoints are refused from the commit on.

    Raises ``NotFound`` where there is none, and ``Conflict`` where it is revoked already.
    """
    with within(connection, timeout, "revoke agent"), connection.cursor(row_factory=class_row(AgentRow)) as cursor:
        row = cursor.execute(_REVOKE, (agent_id,)).fetchone()
    if row is None:
        get_agent(connection, agent_id, timeout=timeout)
        raise Conflict(f"agent {agent_id} is already revoked")
    return row
