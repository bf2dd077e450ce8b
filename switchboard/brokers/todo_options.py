"""How the todos of one queue are worked, as their actor's decorator says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..ledger import LEASE

#: Waits before a failed todo is tried again, where its handler does not say.
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=15), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class TodoOptions:
    """How the todos of one queue are worked."""

    #: How long a claim holds without a heartbeat; the worker extends it each third of that.
    lease: timedelta = LEASE
    #: The first wait before a failed todo is tried again, about; later ones double.
    min_backoff: timedelta = MIN_BACKOFF
    #: The longest such wait.
    max_backoff: timedelta = MAX_BACKOFF
    #: Whose todos are worked beside those of nobody in particular.
    assignee: str | None = None
    #: Whether the handler's own transaction completes the todo.
    store_then_ack: bool = False
