"""Table ``humans``: the people who answer for agents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import Conflict, NotFound
from ..normalize import storable_text
from .connection import Connection, within

_COLUMNS = sql.SQL("id, email, display_name, created_at, updated_at")

_ADD = sql.SQL("""
INSERT INTO humans (email, display_name) VALUES (lower(%s), %s) ON CONFLICT (lower(email)) DO NOTHING RETURNING {}
""").format(_COLUMNS)

_GET = sql.SQL("SELECT {} FROM humans WHERE id = %s").format(_COLUMNS)

_FIND = sql.SQL("SELECT {} FROM humans WHERE lower(email) = lower(%s)").format(_COLUMNS)

_LIST = sql.SQL("SELECT {} FROM humans ORDER BY email").format(_COLUMNS)

_BELONGINGS = sql.SQL("""
SELECT (SELECT count(*) FROM agents WHERE owner_id = humans.id) AS agents,
       (SELECT count(*) FROM endpoints JOIN agents ON agents.id = agent_id WHERE owner_id = humans.id) AS endpoints,
       (SELECT count(*) FROM sessions WHERE human_id = humans.id) AS sessions
FROM humans WHERE id = %s
""")

# Their agents, endpoints and sessions go by the foreign keys' cascades.
_REMOVE = sql.SQL("DELETE FROM humans WHERE id = %s")


@dataclass(frozen=True, slots=True)
class HumanRow:
    """A person as their row is."""

    id: int
    email: str
    display_name: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Belongings:
    """How many rows a person has, those revoked or expired too: what goes when they are removed."""

    agents: int
    endpoints: int
    sessions: int


def add_human(
    connection: Connection, *, email: str, display_name: str = "", timeout: timedelta | None = None
) -> HumanRow:
    """Adds a person; ``Conflict`` where the address is known, however its letters' case."""
    with within(connection, timeout, "add human"), connection.cursor(row_factory=class_row(HumanRow)) as cursor:
        row = cursor.execute(_ADD, (email, storable_text(display_name))).fetchone()
    if row is None:
        raise Conflict(f"there is a human {email} already")
    return row


def get_human(connection: Connection, human_id: int, *, timeout: timedelta | None = None) -> HumanRow:
    """The person with that id; ``NotFound`` where there is none."""
    with within(connection, timeout, "get human"), connection.cursor(row_factory=class_row(HumanRow)) as cursor:
        row = cursor.execute(_GET, (human_id,)).fetchone()
    if row is None:
        raise NotFound(f"no human {human_id}")
    return row


def find_human(connection: Connection, email: str, *, timeout: timedelta | None = None) -> HumanRow:
    """The person with that address, however its letters' case; ``NotFound`` where there is none."""
    with within(connection, timeout, "find human"), connection.cursor(row_factory=class_row(HumanRow)) as cursor:
        row = cursor.execute(_FIND, (email,)).fetchone()
    if row is None:
        raise NotFound(f"no human {email}")
    return row


def list_humans(connection: Connection, *, timeout: timedelta | None = None) -> list[HumanRow]:
    """Everybody, by address."""
    with within(connection, timeout, "list humans"), connection.cursor(row_factory=class_row(HumanRow)) as cursor:
        return cursor.execute(_LIST).fetchall()


def belongings(connection: Connection, human_id: int, *, timeout: timedelta | None = None) -> Belongings:
    """What is theirs; ``NotFound`` where nobody has that id."""
    with (
        within(connection, timeout, "count belongings"),
        connection.cursor(row_factory=class_row(Belongings)) as cursor,
    ):
        row = cursor.execute(_BELONGINGS, (human_id,)).fetchone()
    if row is None:
        raise NotFound(f"no human {human_id}")
    return row


def remove_human(connection: Connection, human_id: int, *, timeout: timedelta | None = None) -> None:
    """Deletes a person with their agents, endpoints and sessions, whose credentials are refused from the commit on.

    Todos that their agents made stay. ``NotFound`` where nobody has that id.
    """
    with within(connection, timeout, "remove human"):
        removed = connection.execute(_REMOVE, (human_id,)).rowcount
    if not removed:
        raise NotFound(f"no human {human_id}")
