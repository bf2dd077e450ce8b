"""What Sentry is told while a batch is stored or a todo is handled carries its adapter, queue and todo."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import dramatiq
import sentry_sdk
from dramatiq.broker import MessageProxy
from dramatiq.worker import Worker

from ..claimed import Todo
from ..model import Batch
from ..sentry import tidy_events, work_tags


class SentryContext(dramatiq.Middleware):
    """Opens a scope of Sentry's, with our tags, around each of our messages; without Sentry it does nothing.

    It goes before Sentry's own middleware, whose scope is then made of this one, and which sends an actor's exception
    before this one ends. Without it events lack the tags ``switchboard.adapter``, ``queue``, ``todo`` and ``attempt``.
    """

    def __init__(self) -> None:
        self._scopes: dict[str, AbstractContextManager[sentry_sdk.Scope]] = {}

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        tidy_events()

    def before_process_message(self, broker: dramatiq.Broker, message: MessageProxy) -> None:
        work = message.args[0] if message.args else None
        if not isinstance(work, (Batch, Todo)) or not sentry_sdk.is_initialized():
            return
        manager = sentry_sdk.isolation_scope()
        manager.__enter__().set_tags(work_tags(work))
        self._scopes[message.message_id] = manager

    def after_process_message(
        self, broker: dramatiq.Broker, message: MessageProxy, *, result: Any = None,
        exception: BaseException | None = None,
    ) -> None:  # fmt: skip
        manager = self._scopes.pop(message.message_id, None) if self._scopes else None
        if manager is not None:
            manager.__exit__(None, None, None)

    after_skip_message = after_process_message
