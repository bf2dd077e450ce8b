"""What Sentry is told while a batch is stored or a todo is handled carries its adapter, queue and todo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import dramatiq
from dramatiq.broker import MessageProxy
from dramatiq.worker import Worker

from ..claimed import Todo
from ..model import Batch


class SentryContext(dramatiq.Middleware):
    """Opens a scope of Sentry's, with our tags, around each of our messages; without Sentry it does nothing.

    It goes before Sentry's own middleware, whose scope is then made of this one, and which sends an actor's exception
    before this one ends. Without it events lack the tags ``switchboard.adapter``, ``queue``, ``todo`` and ``attempt``.
    """

    def __init__(self) -> None:
        self._scope_of: Callable[[Batch | Todo], AbstractContextManager[object] | None] | None = None
        self._scopes: dict[str, AbstractContextManager[object]] = {}

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        # Not at the top: importing sentry_sdk opens a socket, and a process that only makes todos has no need of it.
        from ..telemetry.sentry import tidy_events, work_scope

        tidy_events()
        self._scope_of = work_scope

    def before_process_message(self, broker: dramatiq.Broker, message: MessageProxy) -> None:
        work = message.args[0] if message.args else None
        if self._scope_of is None or not isinstance(work, (Batch, Todo)):
            return
        scope = self._scope_of(work)
        if scope is not None:
            scope.__enter__()
            self._scopes[message.message_id] = scope

    def after_process_message(
        self, broker: dramatiq.Broker, message: MessageProxy, *, result: Any = None,
        exception: BaseException | None = None,
    ) -> None:  # fmt: skip
        scope = self._scopes.pop(message.message_id, None) if self._scopes else None
        if scope is not None:
            scope.__exit__(None, None, None)

    after_skip_message = after_process_message
