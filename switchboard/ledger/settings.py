"""Table ``settings``: what operators tune without a deploy."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

from ..errors import NotFound
from .connection import Connection, within

_GET = sql.SQL("SELECT value FROM settings WHERE key = %s")
_SET = sql.SQL(
    "INSERT INTO settings (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def get_setting(connection: Connection, key: str, *, timeout: timedelta | None = None) -> str:
    """The setting's value; ``NotFound`` where there is no such key."""
    with within(connection, timeout, f"get setting {key}"):
        row = connection.execute(_GET, (key,)).fetchone()
    if row is None:
        raise NotFound(f"no setting {key}")
    return str(row[0])


def set_setting(connection: Connection, key: str, value: str, *, timeout: timedelta | None = None) -> None:
    """Sets the setting, new or known."""
    with within(connection, timeout, f"set setting {key}"):
        connection.execute(_SET, (key, value))
