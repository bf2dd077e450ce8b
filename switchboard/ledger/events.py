"""Table ``events``: every delivery, with its exact bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import NotFound
from ..model import Event, Family, TrustMode
from ..normalize import storable_text
from ..redact import redact_headers
from .connection import Connection, within
from .wire import as_jsonb

_COLUMNS = sql.SQL(
    "id, source, family, event_type, external_id, trust_mode, verified, verify_detail, content_type, headers, "
    "payload, payload_size, host(source_ip) AS source_ip, received_at"
)

# The no-op update makes RETURNING answer for a row that is already there.
_INSERT = sql.SQL("""
INSERT INTO events (source, family, event_type, external_id, trust_mode, verified, verify_detail,
                    content_type, headers, payload, payload_size, source_ip)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (source, external_id) WHERE external_id IS NOT NULL DO UPDATE SET external_id = excluded.external_id
RETURNING {}
""").format(_COLUMNS)

_REMEMBER = sql.SQL("""
INSERT INTO events (source, family, external_id, trust_mode, content_type, payload, payload_size)
VALUES (%s, 'queue', %s, 'queue', 'application/json', %s, %s)
ON CONFLICT (source, external_id) WHERE external_id IS NOT NULL DO NOTHING
RETURNING id
""")

_GET = sql.SQL("SELECT {} FROM events WHERE id = %s").format(_COLUMNS)

_TRACES = sql.SQL("""
SELECT id, jsonb_object_agg(lower(name), value) FROM events, jsonb_each_text(headers) AS header (name, value)
WHERE id = ANY(%s) AND lower(name) IN ('traceparent', 'tracestate') GROUP BY id
""")


def insert_event(
    connection: Connection,
    *,
    source: str,
    payload: bytes,
    family: Family = "queue",
    trust_mode: TrustMode = "queue",
    verified: bool = False,
    verify_detail: str = "",
    external_id: str | None = None,
    event_type: str = "",
    content_type: str = "",
    headers: Mapping[str, str] | None = None,
    source_ip: str | None = None,
    timeout: timedelta | None = None,
) -> Event:
    """Stores one delivery and returns its event; the one that is there, where ``external_id`` is known.

    ``payload`` is the exact body. Headers that carry credentials are masked.
    """
    with within(connection, timeout, "insert event"), connection.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(
            _INSERT,
            (
                source,
                family,
                storable_text(event_type),
                external_id,
                trust_mode,
                verified,
                storable_text(verify_detail),
                storable_text(content_type),
                as_jsonb(redact_headers(headers or {})),
                payload,
                len(payload),
                source_ip,
            ),
        ).fetchone() or _missing("just inserted")


def remember_message(
    connection: Connection, source: str, external_id: str, payload: bytes, *, timeout: timedelta | None = None
) -> int | None:
    """Stores a message that comes by the team's own transport and returns its event's id; None where it is known."""
    with within(connection, timeout, "insert event"):
        row = connection.execute(_REMEMBER, (source, external_id, payload, len(payload))).fetchone()
    return None if row is None else int(row[0])


def get_event(connection: Connection, event_id: int, *, timeout: timedelta | None = None) -> Event:
    """The event with that id; ``NotFound`` where there is none."""
    with within(connection, timeout, "get event"), connection.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(_GET, (event_id,)).fetchone() or _missing(event_id)


def event_traces(connection: Connection, event_ids: Sequence[int]) -> dict[int, dict[str, str]]:
    """Of each of these events that has any: its ``traceparent`` and ``tracestate``, in one statement for all."""
    with within(connection, None, "traces of events"):
        return dict(connection.execute(_TRACES, (list(event_ids),)).fetchall())


def _missing(event_id: object) -> Event:
    raise NotFound(f"no event {event_id}")
