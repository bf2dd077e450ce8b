"""Dead letters go through the back half once more: they are as new, but for what they were called."""

from __future__ import annotations

from dataclasses import replace

from .errors import MessageInvalid
from .ingest import store
from .ledger import Connection, DeadLetterBody, get_adapter, get_dead_letter, resolve_dead_letter
from .model import Delivery, Route
from .normalize import resolve_provider
from .redact import safe_text


def replay(connection: Connection, letter_id: int) -> bool:
    """Stores the dead letter's message as its adapter's messages are stored, and marks it resolved, in the caller's
    one transaction; False where it was resolved before, and nothing is done.

    Its adapter's settings are those of its last registration: a provider that is mended, or a larger ``max_body``,
    has its effect. How its message was verified, and from where it was sent, stays as it was. Raises ``NotFound`` where
    there is no such dead letter or adapter, and ``MessageInvalid`` where it still cannot become a todo, with why.
    """
    letter = get_dead_letter(connection, letter_id, lock=True)
    if letter.resolved_at is not None:
        return False
    adapter = get_adapter(connection, letter.adapter)
    route = Route(
        adapter=letter.adapter,
        queue=str(adapter.config["queue"]),
        key_prefix=adapter.key_prefix,
        provider=str(adapter.config.get("provider", "generic")),
        # Of a row from before these were kept nobody knows more than the adapter's.
        family=letter.family or adapter.family,
        trust_mode=letter.trust_mode or adapter.trust_mode,
        max_body=int(str(adapter.config["max_body"])),
    )
    route, delivery = _as_delivered(route, letter)
    outcome = store(connection, route, resolve_provider(route.provider), [delivery])
    if outcome.refused:
        raise MessageInvalid(f"dead letter {letter_id}: the ledger refuses it: {outcome.refused[0][1]}")
    if outcome.dead:
        raise MessageInvalid(f"dead letter {letter_id}: still no todo: {safe_text(outcome.letters[0].detail)}")
    resolve_dead_letter(connection, letter_id, "replayed")
    return True


def _as_delivered(route: Route, letter: DeadLetterBody) -> tuple[Route, Delivery]:
    native_id = None
    if letter.external_id is not None:
        prefix = route.key_prefix
        if not letter.external_id.startswith(f"{prefix}:"):
            # The adapter's prefix has changed since.
            prefix = letter.external_id.rpartition(":")[0]
        native_id = letter.external_id.removeprefix(f"{prefix}:")
        if letter.reason == "id_conflict":
            # Another message is stored under its id: it gets a key of its own.
            native_id = f"{native_id}:dead-letter-{letter.id}"
        route = replace(route, key_prefix=prefix)
    delivery = Delivery(
        letter.payload,
        native_id,
        letter.verify_detail,
        letter.headers,
        letter.content_type,
        letter.source_ip,
        tries=letter.deliveries,
    )
    return route, delivery
