"""``switchboard.create_todo``: the actor that makes a todo from anywhere that reaches the team's Dramatiq transport."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import dramatiq
from dramatiq.middleware import CurrentMessage

from . import ledger
from .brokers import AdapterQueues, broker_in_force

#: The actor's name, and the queue it is on.
ACTOR, QUEUE = "switchboard.create_todo", "switchboard.create_todo"

#: Milliseconds one may take.
TIME_LIMIT = int(timedelta(minutes=1).total_seconds() * 1000)


def create_todo_actor(broker: AdapterQueues | None = None) -> dramatiq.Actor[Any, Any]:
    """The actor on that broker, or on the one in force; declared with the first call.

    ``create_todo.send(queue=…, payload=…, idempotency_key=…)``: its message is acknowledged once the todo is committed,
    and makes no second one when it is delivered again, for as long as its event is kept. Of several messages with one
    key the first makes a todo, and none makes another until that has ended.
    """
    broker = broker if broker is not None else broker_in_force()
    known: dramatiq.Actor[Any, Any] | None = broker.actors.get(ACTOR)
    if known is not None:
        return known
    if not any(isinstance(middleware, CurrentMessage) for middleware in broker.middleware):
        broker.add_middleware(CurrentMessage())
    actor: dramatiq.Actor[Any, Any] = dramatiq.actor(
        actor_name=ACTOR, queue_name=QUEUE, broker=broker, store_then_ack=True, time_limit=TIME_LIMIT
    )(_create_todo)
    return actor


def _create_todo(
    *,
    queue: str,
    payload: Any = None,
    title: str = "",
    kind: str = "",
    idempotency_key: str | None = None,
    assignee: str | None = None,
    max_attempts: int = 5,
) -> None:
    connection = ledger.transaction()
    event_id = None
    message = CurrentMessage.get_current_message()
    if message is not None:
        # As an event, which outlives the todo: a message that comes again once that is done makes no second one.
        known_as = f"dramatiq:{message.message_id}"
        event_id = ledger.remember_message(connection, ACTOR, known_as, json.dumps(payload).encode())
        if event_id is None:
            return
        idempotency_key = known_as if idempotency_key is None else idempotency_key
    ledger.create_todo(
        connection,
        queue=queue,
        title=title or kind or f"Todo for {queue}",
        payload=payload,
        source=ACTOR,
        kind=kind,
        event_id=event_id,
        idempotency_key=idempotency_key,
        assignee=assignee,
        max_attempts=max_attempts,
    )
