"""Table ``dead_letters``: what could not become a todo, with its exact bytes and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql
from psycopg.rows import class_row

from ..errors import NotFound
from ..model import DeadLetter, Route
from ..redact import redact_headers, safe_text
from .connection import STATEMENT_TIMEOUT, Connection, within

_COLUMNS = sql.SQL(
    "id, adapter, external_id, reason, detail, verify_detail, content_type, headers, "
    "octet_length(payload) AS payload_size, deliveries, received_at, resolved_at"
)

_INSERT = sql.SQL("""
INSERT INTO dead_letters (adapter, external_id, idempotency_key, reason, detail, verify_detail, content_type,
                          headers, payload, deliveries)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (adapter, idempotency_key, reason, sha256(payload)) WHERE resolved_at IS NULL DO NOTHING
RETURNING id
""")

_GET = sql.SQL("SELECT {}, payload FROM dead_letters WHERE id = %s").format(_COLUMNS)

_LIST = sql.SQL("""
SELECT {} FROM dead_letters
WHERE (%(adapter)s::text IS NULL OR adapter = %(adapter)s)
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
    reason: str
    detail: str
    verify_detail: str
    content_type: str
    headers: dict[str, str]
    payload_size: int
    deliveries: int
    received_at: datetime
    resolved_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetterBody(DeadLetterRow):
    """A dead letter with its exact bytes."""

    payload: bytes


def insert_dead_letters(
    connection: Connection,
    route: Route,
    letters: Sequence[DeadLetter],
    *,
    timeout: timedelta = STATEMENT_TIMEOUT,
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
                delivery.verify_detail,
                delivery.content_type,
                json.dumps(redact_headers(delivery.headers)),
                delivery.body,
                letter.deliveries,
            )
            if connection.execute(_INSERT, values).fetchone():
                new.append(letter)
    return new


def get_dead_letter(
    connection: Connection, letter_id: int, *, timeout: timedelta = STATEMENT_TIMEOUT
) -> DeadLetterBody:
    """The dead letter with that id, with its bytes; ``NotFound`` where there is none."""
    with (
        within(connection, timeout, "get dead letter"),
        connection.cursor(row_factory=class_row(DeadLetterBody)) as cursor,
    ):
        row = cursor.execute(_GET, (letter_id,)).fetchone()
    if row is None:
        raise NotFound(f"no dead letter {letter_id}")
    return row


def list_dead_letters(
    connection: Connection,
    *,
    adapter: str | None = None,
    resolved: bool = False,
    before: int | None = None,
    limit: int = 50,
    timeout: timedelta = STATEMENT_TIMEOUT,
) -> list[DeadLetterRow]:
    """The newest dead letters, at most ``limit``; those replayed or discarded too where ``resolved``."""
    with (
        within(connection, timeout, "list dead letters"),
        connection.cursor(row_factory=class_row(DeadLetterRow)) as cursor,
    ):
        return cursor.execute(
            _LIST, {"adapter": adapter, "resolved": resolved, "before": before, "limit": limit}
        ).fetchall()
