"""The back half that every delivery takes, pulled or pushed (SPEC-0002): key, shape, store.

It runs inside the caller's transaction. Nothing is acknowledged here: that follows the commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from hashlib import sha256

from .errors import MessageInvalid
from .ledger import Connection, Keyed, insert_batch, insert_dead_letters
from .model import DeadLetter, DeadLetterReason, Delivery, JsonText, Route, Shape, Stored
from .normalize import Normalizer, storable_json, storable_text
from .redact import redact_headers, safe_text

logger = logging.getLogger(__name__)

_NO_HEADERS = b"{}"


def idempotency_key(route: Route, delivery: Delivery) -> str:
    """``{prefix}:{native id}``, or ``{prefix}:{sha256 of the body, hex}`` where the source gives no id."""
    if delivery.native_id is not None:
        return f"{route.key_prefix}:{delivery.native_id}"
    return f"{route.key_prefix}:{sha256(delivery.body).hexdigest()}"


def store(
    connection: Connection, route: Route, normalizer: Normalizer, deliveries: Sequence[Delivery]
) -> tuple[Stored, list[DeadLetter]]:
    """Stores each delivery as one event and one todo, or as a dead letter; a redelivery makes nothing new.

    Returns the counts and the dead letters that are new, which the caller reports once they are committed.
    Raises ``LedgerError`` where the ledger refuses the batch or does not answer: nothing of it is stored then.
    """
    rows, letters = _shape_all(route, normalizer, deliveries)
    new = 0
    if rows:
        ordered = [rows[key] for key in sorted(rows)]
        new, conflicts = insert_batch(connection, route, ordered, [_headers(row.delivery) for row in ordered])
        letters += [_conflict(rows[key].delivery, key) for key in sorted(conflicts)]
    written = insert_dead_letters(connection, route, letters) if letters else []
    duplicates = len(deliveries) - new - len(written)
    return Stored(new=new, duplicates=duplicates, dead_letters=len(written)), written


def report(route: Route, letters: Iterable[DeadLetter]) -> None:
    """Logs an error a dead letter, without its body."""
    for letter in letters:
        logger.error(
            "dead letter from adapter %s: %s: %s (%s)",
            route.adapter,
            letter.reason,
            safe_text(letter.detail),
            letter.key,
            extra={"adapter": route.adapter, "queue": route.queue, "message_id": letter.delivery.native_id},
        )


def _shape_all(
    route: Route, normalizer: Normalizer, deliveries: Sequence[Delivery]
) -> tuple[dict[str, Keyed], list[DeadLetter]]:
    rows: dict[str, Keyed] = {}
    letters: list[DeadLetter] = []
    for delivery in deliveries:
        key = idempotency_key(route, delivery)
        known = rows.get(key)
        if known is not None:
            if known.delivery.body != delivery.body:
                letters.append(_conflict(delivery, key))
            continue
        shape = _shape(route, normalizer, delivery)
        if isinstance(shape, Shape):
            rows[key] = Keyed(key, delivery, shape)
        else:
            reason, detail = shape
            letters.append(DeadLetter(delivery, key, reason, detail))
    return rows, letters


def _shape(route: Route, normalizer: Normalizer, delivery: Delivery) -> Shape | tuple[DeadLetterReason, str]:
    if delivery.invalid is not None:
        return "invalid", delivery.invalid
    if len(delivery.body) > route.max_body:
        return "too_large", f"{len(delivery.body):,} bytes, more than max_body = {route.max_body:,}"
    try:
        shape: object = normalizer(delivery)
    except MessageInvalid as error:
        return "invalid", f"normalize: {error}"
    except Exception as error:  # noqa: BLE001 - a team's own function may raise anything; the detail says what
        return "invalid", f"normalize: {safe_text(error)}"
    if not isinstance(shape, Shape):  # a team's own function may be untyped
        return "invalid", f"normalize: {route.provider} returned {type(shape).__name__}, expected Shape"
    return _storable(shape)


def _storable(shape: Shape) -> Shape:
    payload = shape.payload
    if payload is not None:
        payload = storable_json(JsonText(storable_text(payload))) or payload
    return Shape(
        title=storable_text(shape.title),
        kind=storable_text(shape.kind),
        event_type=storable_text(shape.event_type),
        payload=payload,
    )


def _conflict(delivery: Delivery, key: str) -> DeadLetter:
    return DeadLetter(delivery, key, "id_conflict", "another body is stored under this id")


def _headers(delivery: Delivery) -> bytes:
    if not delivery.headers:
        return _NO_HEADERS
    text = json.dumps(redact_headers(delivery.headers))
    return (storable_json(text) or text).encode()
