"""Table ``settings``: what operators tune without a deploy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from ..errors import LedgerError, NotFound
from .connection import Connection, within

_GET = sql.SQL("SELECT value FROM settings WHERE key = %s")
_LIST = sql.SQL("SELECT key, value FROM settings ORDER BY key")
_SET = sql.SQL(
    "INSERT INTO settings (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that Switchboard reads: a whole number between two bounds, and what it decides."""

    meaning: str
    lowest: int
    highest: int
    default: int


#: Every setting there is; their defaults are seeded by the migrations.
SETTINGS: Mapping[str, Setting] = {
    "retention_max_age_days": Setting("days that events and ended todos are kept", 1, 36_500, 30),
    "retention_max_rows": Setting("events, and todos, that are kept at most", 0, 10**12, 500_000),
    "dead_letters_max_age_days": Setting("days that dead letters are kept", 1, 36_500, 90),
    "dead_letters_max_rows": Setting("dead letters that are kept at most", 0, 10**12, 100_000),
}


def list_settings(connection: Connection, *, timeout: timedelta | None = None) -> dict[str, str]:
    """Every setting's value by its key."""
    with within(connection, timeout, "list settings"):
        return dict(connection.execute(_LIST).fetchall())


def get_setting(connection: Connection, key: str, *, timeout: timedelta | None = None) -> str:
    """The setting's value; ``NotFound``, with the nearest there is, where there is no such key."""
    with within(connection, timeout, f"get setting {key}"):
        row = connection.execute(_GET, (key,)).fetchone()
    if row is None:
        raise _unknown(key)
    return str(row[0])


def whole_setting(connection: Connection, key: str, *, timeout: timedelta | None = None) -> int:
    """The value of one of ``SETTINGS``; ``LedgerError`` where the row holds what it may not."""
    return _checked(key, get_setting(connection, key, timeout=timeout))


def set_setting(connection: Connection, key: str, value: str, *, timeout: timedelta | None = None) -> None:
    """Sets one of ``SETTINGS``; ``NotFound`` for another key, ``LedgerError`` for a value it may not have."""
    whole = _checked(key, value)
    with within(connection, timeout, f"set setting {key}"):
        connection.execute(_SET, (key, str(whole)))


def _checked(key: str, value: str) -> int:
    setting = SETTINGS.get(key)
    if setting is None:
        raise _unknown(key)
    text = value.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 20 and setting.lowest <= int(text) <= setting.highest:
        return int(text)
    raise LedgerError(
        f"setting {key}: expected a whole number from {setting.lowest} to {setting.highest}, got {value[:40]!r}"
    )


def _unknown(key: str) -> NotFound:
    nearest = difflib.get_close_matches(key, SETTINGS, n=1)
    return NotFound(f"no setting {key}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))
