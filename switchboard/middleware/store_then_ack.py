"""Runs an actor inside one ledger transaction; its message is acknowledged only after that has committed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import dramatiq
from dramatiq.middleware import MiddlewareError

from ..errors import ConfigError
from ..ledger import Ledger

_MARK = "_switchboard_store_then_ack"


class CoroutineRefused(ConfigError, MiddlewareError):
    """A coroutine actor has the option ``store_then_ack``: it would run outside of the transaction's thread."""


class StoreThenAck(dramatiq.Middleware):
    """Adds the actor option ``store_then_ack``::

        @dramatiq.actor(store_then_ack=True)
        def charge(order_id):
            switchboard.transaction().execute("UPDATE …", (order_id,))

    What the actor writes through ``switchboard.transaction()`` commits before its message is acknowledged, or, when it
    raises, not at all. It can still run more than once: a worker that dies between the commit and the
    acknowledgement leaves the message to be delivered again, so writes should be idempotent. Without this
    middleware the option is unknown and the actor is refused.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger

    @property
    def actor_options(self) -> set[str]:
        return {"store_then_ack"}

    def before_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[Any, Any]) -> None:
        if actor.options.get("store_then_ack") and inspect.iscoroutinefunction(inspect.unwrap(actor.fn)):
            raise CoroutineRefused(f"actor {actor.actor_name!r}: store_then_ack is not for coroutine actors")

    def after_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[Any, Any]) -> None:
        # The commit stands inside the actor's function: an error raised by an after_ hook is swallowed, and the
        # message acknowledged all the same (dramatiq.Broker.emit_after).
        if actor.options.get("store_then_ack") and not hasattr(actor.fn, _MARK):
            actor.fn = self._in_transaction(actor.actor_name, actor.fn)

    def _in_transaction(self, actor_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stored(*args: Any, **kwargs: Any) -> Any:
            with self._ledger().transaction(doing=actor_name):
                return function(*args, **kwargs)

        setattr(stored, _MARK, True)
        return stored
