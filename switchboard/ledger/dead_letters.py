"""Table ``dead_letters``: what could not become a todo, with its exact bytes and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from psycopg import sql
from psycopg.rows import class_row

from ..errors import Conflict, NotFound
from ..model import DeadLetter, DeadLetterReason, Family, Route, TrustMode
from ..normalize import storable_text
from ..redact import redact_headers, safe_text
from .connection import Connection, within
from .wire import as_jsonb

_COLUMNS = sql.SQL(
    "id, adapter, external_id, reason, detail, family, trust_mode, verified, verify_detail, "
    "host(source_ip) AS source_ip, content_type, headers, idempotency_key, "
    "octet_length(payload) AS payload_size, deliveries, received_at, resolved_at, resolution"
)

_INSERT = sql.SQL("""
INSERT INTO dead_letters (adapter, external_id, idempotency_key, reason, detail, family, trust_mode, verified,
                          verify_detail, source_ip, content_type, headers, payload, deliveries)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (adapter, idempotency_key, reason, sha256(payload)) WHERE resolved_at IS NULL DO NOTHING
RETURNING id
""")

_GET = sql.SQL("SELECT {}, payload FROM dead_letters WHERE id = %s").format(_COLUMNS)

# FOR UPDATE: of two that resolve it at once, the second sees what the first did.
_LOCK = sql.SQL("SELECT {}, payload FROM dead_letters WHERE id = %s FOR UPDATE").format(_COLUMNS)

_RESOLVE = sql.SQL("""
UPDATE dead_letters SET resolved_at = now(), resolution = %s WHERE id = %s AND resolved_at IS NULL RETURNING {}
""").format(_COLUMNS)

_LIST = sql.SQL("""
SELECT {} FROM dead_letters
WHERE (%(adapter)s::text IS NULL OR adapter = %(adapter)s)
  AND (%(reason)s::text IS NULL OR reason = %(reason)s)
  AND (%(resolved)s OR resolved_at IS NULL)
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC LIMIT %(limit)s
""").format(_COLUMNS)


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter as its row is, without its body: a page of them may be gigabytes."""

    id: int
    adapter: str
    external_id: str | None
    idempotency_key: str
    reason: str
    detail: str
    #: As its message came; with the next two None where it was kept before they were (0007).
    family: Family | None
    trust_mode: TrustMode | None
    verified: bool | None
    verify_detail: str
    source_ip: str | None
    content_type: str
    headers: dict[str, str]
    payload_size: int
    deliveries: int
    received_at: datetime
    resolved_at: datetime | None
    resolution: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterBody(DeadLetterRow):
    """A dead letter with its exact bytes."""

    payload: bytes


def insert_dead_letters(
    connection: Connection,
    route: Route,
    letters: Sequence[DeadLetter],
    *,
    timeout: timedelta | None = None,
) -> list[DeadLetter]:
    """Keeps each with its bytes and returns those that were new: a redelivered one makes no second row."""
    new = []
    with within(connection, timeout, "insert dead letter"):
        for letter in sorted(letters, key=lambda letter: letter.key):
            delivery = letter.delivery
            values = (
                route.adapter,
                letter.key if delivery.native_id is not None else None,
                letter.key,
                letter.reason,
                safe_text(letter.detail),
                route.family,
                route.trust_mode,
                route.verified,
                storable_text(delivery.verify_detail),
                delivery.source_ip,
                storable_text(delivery.content_type),
                as_jsonb(redact_headers(delivery.headers)),
                delivery.body,
                letter.deliveries,
            )
            if connection.execute(_INSERT, values).fetchone():
                new.append(letter)
    return new


def get_dead_letter(
    connection: Connection, letter_id: int, *, lock: bool = False, timeout: timedelta | None = None
) -> DeadLetterBody:
    """The dead letter with that id, with its bytes; ``NotFound`` where there is none.

    With ``lock`` nobody else resolves it while this transaction is open.
    """
    with (
        within(connection, timeout, "get dead letter"),
        connection.cursor(row_factory=class_row(DeadLetterBody)) as cursor,
    ):
        row = cursor.execute(_LOCK if lock else _GET, (letter_id,)).fetchone()
    if row is None:
        raise NotFound(f"no dead letter {letter_id}")
    return row


def resolve_dead_letter(
    connection: Connection,
    letter_id: int,
    resolution: Literal["replayed", "discarded"],
    *,
    timeout: timedelta | None = None,
) -> DeadLetterRow:
    """Marks it resolved; ``NotFound`` where there is none, ``Conflict`` where it is resolved already."""
    with (
        within(connection, timeout, "resolve dead letter"),
        connection.cursor(row_factory=class_row(DeadLetterRow)) as cursor,
    ):
        row = cursor.execute(_RESOLVE, (resolution, letter_id)).fetchone()
    if row is None:
        known = get_dead_letter(connection, letter_id, timeout=timeout)
        raise Conflict(f"dead letter {letter_id} is already {known.resolution}")
    return row


def list_dead_letters(
    connection: Connection,
    *,
    adapter: str | None = None,
    reason: DeadLetterReason | None = None,
    resolved: bool = False,
    before: int | None = None,
    limit: int = 50,
    timeout: timedelta | None = None,
) -> list[DeadLetterRow]:
    """The newest dead letters, at most ``limit``; those replayed or discarded too where ``resolved``."""
    with (
        within(connection, timeout, "list dead letters"),
        connection.cursor(row_factory=class_row(DeadLetterRow)) as cursor,
    ):
        return cursor.execute(
            _LIST, {"adapter": adapter, "reason": reason, "resolved": resolved, "before": before, "limit": limit}
        ).fetchall()
