"""Table ``adapters``: who feeds the ledger, whether it may, and under which keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import NotFound
from ..model import Family, TrustMode
from .connection import Connection, within

_COLUMNS = sql.SQL("name, family, trust_mode, enabled, config, created_at, updated_at")

# Two workers that start together must not both find a prefix free.
_LOCK = sql.SQL("LOCK TABLE adapters IN SHARE ROW EXCLUSIVE MODE")

_TAKEN = sql.SQL("""
SELECT config ->> 'key_prefix' FROM adapters
WHERE name <> %(name)s AND config ->> 'queue' = %(queue)s AND config ->> 'key_prefix' IS NOT NULL
""")

_KEPT = sql.SQL("""
SELECT config ->> 'key_prefix' FROM adapters
WHERE name = %(name)s AND config ->> 'queue' = %(queue)s AND config ->> 'namespace' = %(namespace)s
""")

# enabled is the operator's: an upsert never touches it.
_UPSERT = sql.SQL("""
INSERT INTO adapters (name, family, trust_mode, config) VALUES (%s, %s, %s, %s)
ON CONFLICT (name) DO UPDATE
    SET family = excluded.family, trust_mode = excluded.trust_mode, config = excluded.config, updated_at = now()
RETURNING {}
""").format(_COLUMNS)

_ENABLE = sql.SQL("UPDATE adapters SET enabled = %s, updated_at = now() WHERE name = %s RETURNING {}").format(_COLUMNS)

_LIST = sql.SQL("SELECT {} FROM adapters ORDER BY name").format(_COLUMNS)

_GET = sql.SQL("SELECT {} FROM adapters WHERE name = %s").format(_COLUMNS)

_ENABLED = sql.SQL("SELECT enabled FROM adapters WHERE name = %s")


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """An adapter as its row is; ``config`` has no secrets."""

    name: str
    family: Family
    trust_mode: TrustMode
    enabled: bool
    config: dict[str, object]
    created_at: datetime
    updated_at: datetime

    @property
    def key_prefix(self) -> str:
        """What its deliveries' idempotency keys begin with."""
        return str(self.config["key_prefix"])


def upsert_adapter(
    connection: Connection,
    *,
    name: str,
    family: Family,
    trust_mode: TrustMode,
    queue: str,
    namespace: str,
    config: Mapping[str, object],
    timeout: timedelta | None = None,
) -> AdapterRow:
    """Registers an adapter and decides its key prefix, once: the first in a queue to ask gets ``namespace``.

    ``namespace`` is what its keys would begin with (``redis:deploys``). Another adapter of the same queue whose
    keys could be equal gets a prefix that carries its own name, and keeps it. ``config`` must be free of
    secrets. ``enabled`` is left as it is.
    """
    names = {"name": name, "queue": queue, "namespace": namespace}
    with within(connection, timeout, f"register adapter {name}"):
        connection.execute(_LOCK)
        kept = connection.execute(_KEPT, names).fetchone()
        if kept and kept[0]:
            prefix = kept[0]
        else:
            taken = {row[0] for row in connection.execute(_TAKEN, names)}
            prefix = namespace
            while prefix in taken:
                prefix = f"{prefix}@{name}"
        stored = dict(config) | {"queue": queue, "namespace": namespace, "key_prefix": prefix}
        with connection.cursor(row_factory=class_row(AdapterRow)) as cursor:
            row = cursor.execute(_UPSERT, (name, family, trust_mode, json.dumps(stored))).fetchone()
    if row is None:
        raise NotFound(f"no adapter {name}")
    return row


def get_adapter(connection: Connection, name: str, *, timeout: timedelta | None = None) -> AdapterRow:
    """The adapter with that name; ``NotFound`` where nobody registered it."""
    with (
        within(connection, timeout, f"look up adapter {name}"),
        connection.cursor(row_factory=class_row(AdapterRow)) as cursor,
    ):
        row = cursor.execute(_GET, (name,)).fetchone()
    if row is None:
        raise NotFound(f"no adapter {name}")
    return row


def adapter_enabled(connection: Connection, name: str, *, timeout: timedelta | None = None) -> bool:
    """Whether the adapter may consume; ``NotFound`` where nobody registered it."""
    with within(connection, timeout, f"look up adapter {name}"):
        row = connection.execute(_ENABLED, (name,)).fetchone()
    if row is None:
        raise NotFound(f"no adapter {name}")
    return bool(row[0])


def set_adapter_enabled(
    connection: Connection, name: str, enabled: bool, *, timeout: timedelta | None = None
) -> AdapterRow:
    """Lets the adapter consume, or stops it, within two seconds; ``NotFound`` where nobody registered it."""
    with (
        within(connection, timeout, f"{'enable' if enabled else 'disable'} adapter {name}"),
        connection.cursor(row_factory=class_row(AdapterRow)) as cursor,
    ):
        row = cursor.execute(_ENABLE, (enabled, name)).fetchone()
    if row is None:
        raise NotFound(f"no adapter {name}")
    return row


def list_adapters(connection: Connection, *, timeout: timedelta | None = None) -> list[AdapterRow]:
    """Every adapter that ever registered, by name."""
    with (
        within(connection, timeout, "list adapters"),
        connection.cursor(row_factory=class_row(AdapterRow)) as cursor,
    ):
        return cursor.execute(_LIST).fetchall()
