"""The insert every delivery takes: events and their todos, a whole batch in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from psycopg import sql

from ..errors import LedgerUnavailable
from ..model import Delivery, Route, Shape
from ..normalize import storable_text
from .connection import Connection, within
from .notify import CHANNEL
from .wire import ByteaArray, JsonbArray, TextArray

_INCOMING = sql.SQL("""
incoming AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s, %(bodies)s, %(payloads)s, %(titles)s, %(kinds)s, %(event_types)s,
                         %(content_types)s, %(headers)s, %(verify_details)s, %(source_ips)s)
    WITH ORDINALITY AS t (key, body, payload, title, kind, event_type,
                          content_type, headers, verify_detail, source_ip, n)
)
""")

# In the same round trip; equal ones of a transaction are one.
_NOTIFY = sql.SQL("CASE WHEN %(notify)s AND count(*) > 0 THEN pg_notify({}, %(queue)s) END").format(
    sql.Literal(CHANNEL)
)

# Incoming rows are ordered by key, and inserted in that order: unordered batches of two sessions deadlock.
# A todo's payload is derived from the bytes already sent, unless its shape says otherwise. A key that is there is not
# even tried: where a prune that has not ended is deleting its event, ON CONFLICT would wait for all of that.
_INSERT = sql.SQL("""
WITH {incoming}, stored AS (
    INSERT INTO events (source, family, event_type, external_id, trust_mode, verified, verify_detail,
                        content_type, headers, payload, payload_size, source_ip)
    SELECT %(source)s, %(family)s, event_type, key, %(trust_mode)s, %(verified)s, verify_detail,
           content_type, headers, body, octet_length(body), source_ip::inet
    FROM incoming
    WHERE (SELECT true FROM events
           WHERE source = %(source)s AND external_id = incoming.key AND external_id IS NOT NULL LIMIT 1) IS NULL
    ORDER BY n
    ON CONFLICT (source, external_id) WHERE external_id IS NOT NULL DO NOTHING
    RETURNING id, external_id
), made AS (
    INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key)
    SELECT %(queue)s, %(source)s, kind, title,
           coalesce(incoming.payload, convert_from(body, 'UTF8')::jsonb), stored.id, key
    FROM incoming JOIN stored ON stored.external_id = incoming.key ORDER BY n
    ON CONFLICT (queue, idempotency_key)
        WHERE idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed' DO NOTHING
)
SELECT count(*), {notify} FROM stored
""").format(incoming=_INCOMING, notify=_NOTIFY)

# Without a native id the live todo is what a redelivery is known by, so it comes first, and its event only with it.
_INSERT_WITHOUT_ID = sql.SQL("""
WITH {incoming}, made AS (
    INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key)
    SELECT %(queue)s, %(source)s, kind, title,
           coalesce(payload, convert_from(body, 'UTF8')::jsonb), nextval(pg_get_serial_sequence('events', 'id')), key
    FROM incoming ORDER BY n
    ON CONFLICT (queue, idempotency_key)
        WHERE idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed' DO NOTHING
    RETURNING event_id, idempotency_key
), stored AS (
    INSERT INTO events (id, source, family, event_type, trust_mode, verified, verify_detail,
                        content_type, headers, payload, payload_size, source_ip)
    OVERRIDING SYSTEM VALUE
    SELECT made.event_id, %(source)s, %(family)s, event_type, %(trust_mode)s, %(verified)s, verify_detail,
           content_type, headers, body, octet_length(body), source_ip::inet
    FROM incoming JOIN made ON made.idempotency_key = incoming.key ORDER BY n
)
SELECT count(*), {notify} FROM made
""").format(incoming=_INCOMING, notify=_NOTIFY)

# A statement of its own: the insert cannot see what another session has committed while it waited for it. One look-up a
# key: as a join, a table that has not been analyzed yet is read whole for every batch.
_COMPARE = sql.SQL("""
SELECT known.key, sha256(e.payload) = known.digest
FROM unnest(%(keys)s, %(digests)s) AS known (key, digest)
CROSS JOIN LATERAL (
    SELECT payload FROM events WHERE source = %(source)s AND external_id = known.key LIMIT 1
) AS e
""")


@dataclass(frozen=True, slots=True)
class Keyed:
    """A delivery with its idempotency key and its shape."""

    key: str
    delivery: Delivery
    shape: Shape


def insert_batch(
    connection: Connection,
    route: Route,
    rows: Sequence[Keyed],
    headers: Sequence[bytes],
    *,
    timeout: timedelta | None = None,
) -> tuple[int, set[str]]:
    """Stores each row's event and its todo; a key that is already there makes neither.

    ``rows`` are ordered by key, have no key twice, and all have a native id or none has; ``headers`` are theirs,
    redacted, each a JSON object in UTF-8. Returns how many were new, and the keys that are there with another body:
    those are not redeliveries (design, "same id, other body").
    """
    keys = TextArray.of(row.key for row in rows)
    identified = rows[0].delivery.native_id is not None
    with within(connection, timeout, "insert events and todos"):
        counted = connection.execute(
            _INSERT if identified else _INSERT_WITHOUT_ID,
            {
                "keys": keys,
                "bodies": ByteaArray([row.delivery.body for row in rows]),
                "payloads": JsonbArray(
                    [None if row.shape.payload is None else row.shape.payload.encode() for row in rows]
                ),
                "titles": TextArray.of(row.shape.title for row in rows),
                "kinds": TextArray.of(row.shape.kind for row in rows),
                "event_types": TextArray.of(row.shape.event_type for row in rows),
                "content_types": TextArray.of(storable_text(row.delivery.content_type) for row in rows),
                "headers": JsonbArray(headers),
                "verify_details": TextArray.of(storable_text(row.delivery.verify_detail) for row in rows),
                "source_ips": TextArray.of(row.delivery.source_ip for row in rows),
                "source": route.adapter,
                "family": route.family,
                "trust_mode": route.trust_mode,
                "verified": route.verified,
                "queue": route.queue,
                "notify": connection.notify,
            },
        ).fetchone()
        new: int = counted[0] if counted else 0
        if new == len(rows) or not identified:
            return new, set()
        known = connection.execute(
            _COMPARE,
            {
                "keys": keys,
                "digests": ByteaArray([sha256(row.delivery.body).digest() for row in rows]),
                "source": route.adapter,
            },
        ).fetchall()
    if len(known) < len(rows):
        raise LedgerUnavailable("insert events and todos: an event was pruned while it was looked up; try again")
    return new, {key for key, same in known if not same}
