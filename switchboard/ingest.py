"""The back half that every delivery takes, pulled or pushed (SPEC-0002): key, shape, store.

It runs inside the caller's transaction. Nothing is acknowledged here: that follows the commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from hashlib import sha256

from .errors import LedgerError, LedgerUnavailable, MessageInvalid, PoisonMessage
from .ledger import Connection, Keyed, insert_batch, insert_dead_letters, note_pending_acks, savepoint
from .model import DeadLetter, DeadLetterReason, Delivery, JsonText, Route, Shape, Stored
from .normalize import Normalizer, storable_json, storable_text
from .redact import redact_headers, safe_text
from .telemetry.metrics import count

logger = logging.getLogger(__name__)

_NO_HEADERS = b"{}"


def idempotency_key(route: Route, delivery: Delivery) -> str:
    """``{prefix}:{native id}``, or ``{prefix}:{sha256 of the body, hex}`` where the source gives no id."""
    if delivery.native_id is not None:
        return f"{route.key_prefix}:{delivery.native_id}"
    return f"{route.key_prefix}:{sha256(delivery.body).hexdigest()}"


def store(connection: Connection, route: Route, normalizer: Normalizer, deliveries: Sequence[Delivery]) -> Stored:
    """Stores each delivery as one event and one todo, or as a dead letter; a redelivery makes nothing new.

    What the ledger refuses for what it is comes back as ``refused``, its neighbours stored. Raises
    ``LedgerUnavailable`` where the ledger does not answer: nothing of the batch is stored then.
    """
    rounds, letters, twins = _shape_all(route, normalizer, deliveries)
    new = 0
    refused: list[tuple[Delivery, str]] = []
    differing: list[Delivery] = []
    for rows in rounds:
        conflicts: set[str] = set()
        ordered = [rows[key] for key in sorted(rows)]
        for identified in (True, False):
            same_kind = [row for row in ordered if (row.delivery.native_id is not None) is identified]
            if same_kind:
                new += _insert(connection, route, same_kind, conflicts, refused)
        for key in sorted(conflicts):
            delivery = rows[key].delivery
            if delivery.vouched_id:
                differing.append(delivery)
            else:
                letters += [_conflict(each, key) for each in (delivery, *twins.get(id(delivery), ()))]
    # The twin of a refused delivery is stored no more than that one is.
    refused += [(twin, why) for delivery, why in refused for twin in twins.get(id(delivery), ())]
    written = insert_dead_letters(connection, route, letters) if letters else []
    duplicates = len(deliveries) - new - len(letters) - len(refused)
    return Stored(new, duplicates, dead_letters=written, letters=letters, refused=refused, differing=differing)


def bury(connection: Connection, route: Route, _normalizer: Normalizer, deliveries: Sequence[Delivery]) -> Stored:
    """Keeps each delivery as a dead letter, ``poison``, without looking at its body."""
    letters = [
        DeadLetter(
            delivery,
            idempotency_key(route, delivery),
            "poison",
            _why_poison(delivery),
            delivery.tries,
            str(_poison(delivery)),
        )
        for delivery in deliveries
    ]
    written = insert_dead_letters(connection, route, letters)
    return Stored(dead_letters=written, letters=letters)


def _why_poison(delivery: Delivery) -> str:
    poison = _poison(delivery)
    return f"{poison}; the last: {delivery.last_error}" if delivery.last_error else str(poison)


def _poison(delivery: Delivery) -> PoisonMessage:
    return PoisonMessage(f"failed or killed its worker in each of {delivery.tries} tries")


def park(connection: Connection, route: Route, deliveries: Sequence[Delivery], outcome: Stored) -> list[Delivery]:
    """Notes those that are stored and whose todo has not ended, to be acknowledged when it has; returns them."""
    apart = {id(letter.delivery) for letter in outcome.letters} | {id(delivery) for delivery, _ in outcome.refused}
    stored = [delivery for delivery in deliveries if id(delivery) not in apart]
    return note_pending_acks(connection, route, [(idempotency_key(route, delivery), delivery) for delivery in stored])


def report(route: Route, outcome: Stored) -> None:
    """Counts a committed batch, and logs what of it somebody should look at: never a body.

    Each new dead letter is an error record, which Sentry takes for an event where it is set up.
    """
    adapter = route.adapter
    count("switchboard_deliveries", outcome.new, adapter=adapter, outcome="new")
    known = outcome.duplicates + outcome.dead - len(outcome.dead_letters)
    count("switchboard_deliveries", known, adapter=adapter, outcome="duplicate")
    for letter in outcome.dead_letters:
        count("switchboard_deliveries", adapter=adapter, outcome="dead_letter")
        count("switchboard_dead_letters", adapter=adapter, reason=letter.reason)
        logger.error(
            "dead letter from adapter %s: %s: %s (%s)",
            adapter,
            letter.reason,
            safe_text(letter.said),
            letter.key,
            extra=_fields(route, letter.delivery) | {"reason": letter.reason},
        )
    for delivery in outcome.differing:
        logger.info(
            "adapter %s: another body under an id that its sender vouches for is a redelivery, and is not kept (%s)",
            adapter,
            idempotency_key(route, delivery),
            extra=_fields(route, delivery),
        )
    if outcome.refused:
        first, why = outcome.refused[0]
        logger.warning(
            "adapter %s: the ledger refuses %d of its messages, each is tried alone from now on; the first: %s",
            adapter,
            len(outcome.refused),
            why,
            extra=_fields(route, first),
        )


def _fields(route: Route, delivery: Delivery) -> dict[str, object]:
    return {
        "adapter": route.adapter,
        "broker": route.broker,
        "queue": route.queue,
        "message_id": delivery.native_id or delivery.handle,
    }


def _insert(
    connection: Connection,
    route: Route,
    rows: Sequence[Keyed],
    conflicts: set[str],
    refused: list[tuple[Delivery, str]],
) -> int:
    """Inserts what can be inserted, and halves what is refused until it is found out which rows are to blame."""
    try:
        with savepoint(connection, "insert events and todos"):
            new, found = insert_batch(connection, route, rows, [_headers(row.delivery) for row in rows])
    except LedgerUnavailable:
        raise
    except LedgerError as error:
        if len(rows) == 1:
            refused.append((rows[0].delivery, safe_text(str(error))))
            return 0
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:])
        return sum(_insert(connection, route, half, conflicts, refused) for half in halves)
    conflicts |= found
    return new


def _shape_all(
    route: Route, normalizer: Normalizer, deliveries: Sequence[Delivery]
) -> tuple[list[dict[str, Keyed]], list[DeadLetter], dict[int, list[Delivery]]]:
    """Rounds of rows, no key twice in one: other bodies under a key follow in the next round, and meet the first.

    With the dead letters, and with the twins (same key, same body) of a delivery by its ``id()``.
    """
    rounds: list[dict[str, Keyed]] = [{}]
    letters: list[DeadLetter] = []
    twins: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        key = idempotency_key(route, delivery)
        known = [rows[key] for rows in rounds if key in rows]
        twin = next((row.delivery for row in known if row.delivery.body == delivery.body), None)
        if twin is not None:
            twins.setdefault(id(twin), []).append(delivery)
            continue
        shape = _shape(route, normalizer, delivery)
        if isinstance(shape, Shape):
            if len(known) == len(rounds):
                rounds.append({})
            rounds[len(known)][key] = Keyed(key, delivery, shape)
        else:
            reason, detail, loggable = shape
            letters.append(DeadLetter(delivery, key, reason, detail, delivery.tries, loggable))
    return rounds, letters, twins


def _shape(
    route: Route, normalizer: Normalizer, delivery: Delivery
) -> Shape | tuple[DeadLetterReason, str, str | None]:
    """Its shape; else why it has none, and what of that may be logged, where not all."""
    if delivery.invalid is not None:
        return "invalid", delivery.invalid, None
    if len(delivery.body) > route.max_body:
        return "too_large", f"{len(delivery.body):,} bytes, more than max_body = {route.max_body:,}", None
    try:
        return _storable(normalizer(delivery))
    except MessageInvalid as error:
        return "invalid", f"normalize: {error}", None
    except Exception as error:  # noqa: BLE001 - a team's own function may raise anything; the detail says what
        return "invalid", f"normalize: {safe_text(error)}", f"normalize: {type(error).__name__}"


def _storable(shape: Shape) -> Shape:
    # Nearly all derive their payload and are printable: nothing to replace, and no second object.
    if shape.payload is None and (shape.title + shape.kind + shape.event_type).isprintable():
        return shape
    payload = None if shape.payload is None else JsonText(storable_text(shape.payload))
    if payload is not None:
        payload = storable_json(payload) or payload
    return Shape(
        title=storable_text(shape.title),
        kind=storable_text(shape.kind),
        event_type=storable_text(shape.event_type),
        payload=payload,
    )


def _conflict(delivery: Delivery, key: str) -> DeadLetter:
    return DeadLetter(delivery, key, "id_conflict", "another body is stored under this id", delivery.tries)


def _headers(delivery: Delivery) -> bytes:
    if not delivery.headers:
        return _NO_HEADERS
    text = json.dumps(redact_headers(delivery.headers))
    return (storable_json(text) or text).encode()
