"""A claimed todo in its handler's hands."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from . import ledger as ledgers
from .errors import Conflict
from .ledger import Ledger, current_transaction
from .ledger.wire import as_jsonb
from .model import Event, JsonText, TodoRow

logger = logging.getLogger(__name__)

_NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Receipt:
    """A handler returned. ``result`` is what, as JSON; ``completed`` where its own transaction said so already."""

    result: JsonText | None
    completed: bool = False


class LeaseLost(Conflict):
    """Another has the todo: what this worker would do with it is not to be done, or not to be stored."""


class Hold:
    """What changes about a claimed todo while it is held."""

    def __init__(
        self, ledger: Ledger, lease: timedelta, *, completes_itself: bool, trace: Mapping[str, str] = _NO_HEADERS
    ) -> None:
        self.ledger = ledger
        self.lease = lease
        #: Whether the handler's own transaction completes the todo (``store_then_ack``).
        self.completes_itself = completes_itself
        #: The headers of its event that say which trace it is of; read only where tracing is on.
        self.trace = trace
        #: The handler was called.
        self.begun = False
        #: Another may have the todo by now.
        self.lost = False
        #: An error was logged that says so.
        self.lost_is_said = False
        #: The handler returned: the only thing that completes a todo.
        self.receipt: Receipt | None = None
        self.event: Event | None = None
        #: Monotonic second from which the lease counts: a process that was frozen finds itself long past its end.
        self.extended_at = time.monotonic()


@dataclass(slots=True, eq=False, repr=False)
class Todo(TodoRow):
    """A todo that this worker has claimed, as a handler gets it: its row's columns, its event, and its lease.

    The lease is extended while the handler runs. A handler may run more than once: its worker can die after the work
    is done and before that is written, unless it uses ``store_then_ack``.
    """

    hold: Hold

    @property
    def event(self) -> Event | None:
        """The delivery it came from, read when first asked for; None for a todo that no delivery made."""
        if self.hold.event is None and self.event_id is not None:
            with self.hold.ledger.transaction(doing=f"event of todo {self.id}") as transaction:
                self.hold.event = ledgers.get_event(transaction.connection, self.event_id)
        return self.hold.event

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of its event; those that carry credentials are masked."""
        event = self.event
        return event.headers if event else _NO_HEADERS

    @property
    def body(self) -> bytes | None:
        """The exact bytes its event came with; None for a todo that no delivery made."""
        event = self.event
        return event.payload if event else None

    @property
    def is_lost(self) -> bool:
        """Whether its lease is known to have gone to another: what this handler does is done twice."""
        return self.hold.lost

    def heartbeat(self) -> None:
        """Extends the lease now, which the worker does by itself as well.

        Raises ``Conflict`` where another has the todo: stop then, as this handler cannot complete it any more.
        """
        owner = self.owner or ""
        with self.hold.ledger.transaction(doing=f"heartbeat of todo {self.id}") as transaction:
            try:
                ledgers.heartbeat(transaction.connection, self.id, owner, lease=self.hold.lease)
            except Conflict:
                self.hold.lost = True
                raise

    def begin(self) -> None:
        """The handler is called; ``LeaseLost`` where another may have the todo by now, and nothing has begun."""
        if self.hold.lost or time.monotonic() - self.hold.extended_at >= self.hold.lease.total_seconds():
            raise LeaseLost(f"todo {self.id}: its lease ran out before its handler began")
        self.hold.begun = True

    def finish(self, result: object) -> None:
        """The handler returned: its receipt. In its own transaction the todo is completed at once, or ``Conflict``."""
        text = self._as_result(result)
        if not self.hold.completes_itself:
            self.hold.receipt = Receipt(text)
            return
        transaction = current_transaction()
        done = ledgers.complete_todos(transaction.connection, [(self.id, self.owner or "", text)])
        if self.id not in done:
            self.hold.lost = True
            raise LeaseLost(f"complete todo {self.id}: its lease is another's now; nothing of it is stored")
        transaction.on_commit(lambda: setattr(self.hold, "receipt", Receipt(text, completed=True)))

    def _as_result(self, result: object) -> JsonText | None:
        if result is None:
            return None
        try:
            return JsonText(as_jsonb(result))
        except (TypeError, ValueError, RecursionError):
            logger.warning(
                "todo %d: its handler returned %s, which is not JSON", self.id, type(result).__name__,
                extra={"queue": self.queue, "todo_id": self.id},
            )  # fmt: skip
            return None

    def __repr__(self) -> str:
        return f"<Todo {self.id} of {self.queue}: attempt {self.attempt} of {self.max_attempts}>"
