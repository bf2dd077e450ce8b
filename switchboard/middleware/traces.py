"""A span for each batch that is stored and for each todo that is handled, where tracing is on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import dramatiq
from dramatiq.broker import MessageProxy

from ..claimed import Todo
from ..model import Batch
from ..telemetry.tracing import ingest_span, is_on, process_span


class Traces(dramatiq.Middleware):
    """Makes the spans of ``switchboard.telemetry.tracing``, with what the actor raised; without it no trace goes on.

    Where no tracer provider is set it does nothing, and costs nothing that can be measured beside a message.
    """

    def __init__(self) -> None:
        self._spans: dict[str, AbstractContextManager[None]] = {}

    def before_process_message(self, broker: dramatiq.Broker, message: MessageProxy) -> None:
        if not is_on() or not message.args:
            return
        span = _span(message.args[0])
        if span is not None:
            span.__enter__()
            self._spans[message.message_id] = span

    def after_process_message(
        self, broker: dramatiq.Broker, message: MessageProxy, *, result: Any = None,
        exception: BaseException | None = None,
    ) -> None:  # fmt: skip
        span = self._spans.pop(message.message_id, None) if self._spans else None
        if span is not None and exception is None:
            span.__exit__(None, None, None)
        elif span is not None and exception is not None:
            # It is recorded, and not raised again: Dramatiq has it already.
            span.__exit__(type(exception), exception, exception.__traceback__)

    after_skip_message = after_process_message


def _span(work: object) -> AbstractContextManager[None] | None:
    if isinstance(work, Batch):
        route = work.route
        system, _, destination = route.namespace.partition(":")
        headers = [delivery.headers for delivery in work.deliveries]
        return ingest_span(route.adapter, system=system, destination=destination, headers=headers)
    if isinstance(work, Todo):
        return process_span(
            work.queue,
            todo_id=work.id,
            attempt=work.attempt,
            message=f"{work.queue}:{work.id}",
            headers=work.hold.trace,
        )
    return None
