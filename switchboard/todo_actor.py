"""``@switchboard.todo``: a function becomes the Dramatiq actor that works a queue of todos."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import dramatiq

from .brokers import AdapterQueues, TodoOptions, broker_in_force, todo_queue
from .brokers.retries import never
from .brokers.todo_options import MAX_BACKOFF, MIN_BACKOFF
from .claimed import Todo
from .errors import ConfigError
from .ledger import LEASE

Handler = Callable[[Todo], Any]

_QUEUE = re.compile(r"[A-Za-z0-9._-]{1,200}")


def todo(
    *,
    queue: str,
    lease: timedelta = LEASE,
    min_backoff: timedelta = MIN_BACKOFF,
    max_backoff: timedelta = MAX_BACKOFF,
    assignee: str | None = None,
    store_then_ack: bool = False,
    broker: AdapterQueues | None = None,
    actor_name: str | None = None,
    **options: Any,
) -> Callable[[Handler], dramatiq.Actor[Any, Any]]:
    """Makes a function the handler of a queue's todos::

        @switchboard.todo(queue="deploys", lease=timedelta(minutes=2))
        def deploy(todo: switchboard.Todo) -> dict | None:
            ...

    What it returns, if JSON, is the todo's result. When it raises, the todo fails: it is tried again after a backoff
    between ``min_backoff`` and ``max_backoff`` (exponential, jittered), or after the delay of a ``dramatiq.Retry``, and
    is failed for good in its last attempt, or at once by one of the actor's ``throws``. ``lease`` is how long a dead
    worker's todo waits for another; a running handler's is extended. With ``store_then_ack`` what it writes through
    ``switchboard.transaction()`` and the todo's completion commit together. ``options`` are Dramatiq's (``time_limit``,
    ``priority``, ``throws`` …). Raises ``ConfigError`` where the queue has a handler already.
    """
    if not _QUEUE.fullmatch(queue):
        raise ConfigError(f"todo queue {queue!r}: a queue with a handler is named with letters, digits, . _ and -")
    settings = TodoOptions(lease, min_backoff, max_backoff, assignee, store_then_ack)

    def decorate(function: Handler) -> dramatiq.Actor[Any, Any]:
        chosen = broker if broker is not None else broker_in_force()
        with chosen.todo_queue_of(queue, settings):
            actor: dramatiq.Actor[Any, Any] = dramatiq.actor(
                queue_name=todo_queue(queue),
                actor_name=actor_name or function.__name__,
                broker=chosen,
                store_then_ack=store_then_ack,
                # The ledger counts attempts and keeps the waits. A copy by Retries would be another message.
                max_retries=0,
                retry_when=never,
                **options,
            )(_as_handler(function))
        return actor

    return decorate


def _as_handler(function: Handler) -> Callable[[Todo], Any]:
    """The function with its receipt: only a call that returned completes the todo."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def handle_later(todo: Todo) -> None:
            todo.begin()
            returned: Awaitable[Any] = function(todo)
            todo.finish(await returned)

        return handle_later

    @functools.wraps(function)
    def handle(todo: Todo) -> None:
        todo.begin()
        todo.finish(function(todo))

    return handle
