"""The consumer of a ``todo.<queue>`` queue: claims todos, keeps their leases, and writes how each ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import fields
from datetime import timedelta
from typing import Any

import dramatiq
from dramatiq.broker import MessageProxy

from ..backoff import Outage
from ..claimed import Hold, Todo
from ..errors import LedgerError, LedgerUnavailable
from ..ledger import (
    STATEMENT_TIMEOUT,
    Ledger,
    claim_rows,
    event_traces,
    extend_leases,
    reap_expired,
)
from ..model import TodoRow
from ..redact import safe_text
from ..telemetry.metrics import count, expose
from ..telemetry.pulse import Beat
from ..telemetry.tracing import is_on as tracing_is_on
from .offer import Offer
from .todo_endings import End, Endings
from .todo_options import TodoOptions

logger = logging.getLogger(__name__)

#: Seconds between two looks for todos where nobody was nudged, and between two requeuings of leases that ran out.
SCAN_INTERVAL, REQUEUE_INTERVAL = 1.0, 1.0

#: Todos held at once, at most, where handlers are quick: claiming and completing are worth a round trip together.
MOST_HELD = 512

#: Seconds in which what is held has to be worked off for more to be held, and from which less is.
QUICK, SLOW = 0.1, 1.0

#: The shortest time a statement gets, however short the leases are.
SHORTEST_PATIENCE = timedelta(milliseconds=500)

#: Where its event's id stands in a claimed row.
EVENT_ID = [field.name for field in fields(TodoRow)].index("event_id")


class TodoConsumer(dramatiq.Consumer):
    """Claims as many todos as its worker gets through, extends what it holds, and completes in groups.

    One transaction writes what has ended and claims anew; the worker's threads never wait for it. ``__next__`` is
    called by the consumer's thread, ``ack`` and ``nack`` by the worker's. A todo is completed on the receipt of a
    handler that returned, and on nothing else: what was skipped or refused is released.
    """

    def __init__(
        self, queue: str, queue_name: str, actor: dramatiq.Actor[Any, Any], options: TodoOptions, ledger: Ledger,
        *, worker: str, prefetch: int, timeout_seconds: float,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._queue_name = queue_name
        self._actor = actor
        self._options = options
        self._endings = Endings(queue, actor, options)
        self._ledger = ledger
        self._worker = worker
        self._prefetch = prefetch
        self._timeout = timeout_seconds
        self._changed = threading.Condition()
        self._stopping = False
        self._nudged = True
        self._claimed: deque[Todo] = deque()
        #: By message id: offered to the worker and not yet answered.
        self._in_flight: dict[str, Todo] = {}
        self._ended: list[End] = []
        self._most = prefetch
        #: After a refusal: what has ended is written one by one.
        self._carefully = False
        #: A statement that waits for somebody's lock must not cost what is held its leases.
        self._patience = max(SHORTEST_PATIENCE, min(STATEMENT_TIMEOUT, options.lease / 4))
        self._fields: dict[str, object] = {"queue": queue}
        self._outage = Outage(f"todo queue {queue}: the ledger", logger, self._fields)
        now = time.monotonic()
        self._scan_at = self._requeue_at = self._extend_at = self._round_at = now
        #: What this consumer last did, for the process's pulse.
        self.beat = Beat(queue_name, looped_at=now)
        #: Ended since the present round began, in which as much as is held has to end.
        self._round_ended = 0
        expose(queue=queue)

    @property
    def queue(self) -> str:
        """The todo queue it claims from."""
        return self._queue

    @property
    def stopped(self) -> bool:
        """Whether its worker has been told to stop."""
        return self._stopping

    def nudge(self) -> None:
        """There may be new todos: any thread may say so."""
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    # Claiming: the consumer's thread

    def __next__(self) -> MessageProxy | None:
        deadline = time.monotonic() + self._timeout
        self.beat.looped()
        try:
            return self._next(deadline)
        except LedgerError as error:
            self._outage.failed(error)
        return None

    def _next(self, deadline: float) -> MessageProxy | None:
        if self._claimed and not self._stopping:
            return self._offer(self._claimed.popleft())
        if self._outage.wait_seconds:
            return self._pause(deadline, self._outage.wait_seconds, wake=False)
        now = time.monotonic()
        self._extend_leases(now)
        self._requeue_expired(now)
        wanted = self._wanted(now)
        if self._ended or wanted:
            self._exchange(wanted)
            return self._offer(self._claimed.popleft()) if self._claimed and not self._stopping else None
        # Nothing is to be written, and the last thing that was asked, a moment ago, was answered.
        self.beat.answered()
        return self._pause(deadline, self._due_at() - now)

    def _due_at(self) -> float:
        """The monotonic second at which something is to be done that no thread will wake this one for."""
        due = [self._extend_at]
        if not self._stopping:
            due.append(self._requeue_at)
            if self._held_count() < self._most:
                due.append(self._scan_at)
        return min(due)

    def _wanted(self, now: float) -> int:
        """How many to claim now: none while nothing says that there are any."""
        held = self._held_count()
        if self._stopping or held >= self._most or not (self._nudged or now >= self._scan_at):
            return 0
        return self._most - held

    def _exchange(self, wanted: int) -> None:
        """Writes how what is held has ended, and claims anew, in one transaction."""
        with self._changed:
            ended, self._ended = self._ended, []
            self._nudged = False
        try:
            with self._ledger.transaction(timeout=self._patience, doing=f"todos of {self._queue}") as transaction:
                self._endings.write(transaction.connection, ended, carefully=self._carefully)
                rows: list[tuple[Any, ...]] = []
                traces: dict[int, dict[str, str]] = {}
                if wanted:
                    rows = claim_rows(
                        transaction.connection,
                        self._queue,
                        worker=self._worker,
                        limit=wanted,
                        lease=self._options.lease,
                        assignee=self._options.assignee,
                    )
                events = [row[EVENT_ID] for row in rows if row[EVENT_ID] is not None] if tracing_is_on() else []
                if events:
                    traces = event_traces(transaction.connection, events)
        except BaseException as error:
            with self._changed:
                self._ended = ended + self._ended
                self._nudged = True
            if isinstance(error, LedgerError) and not isinstance(error, LedgerUnavailable) and not self._carefully:
                # PostgreSQL refuses something of it for what it is: the next time one by one, to find out what.
                self._carefully = True
                return
            raise
        self._carefully = False
        # Not before something is written: a read-only server answers, too.
        self._outage.over()
        self.beat.answered()
        now = time.monotonic()
        if wanted:
            full = len(rows) == wanted
            self._adapt(now, full, len(ended))
            self._nudged = self._nudged or full
            count("switchboard_claims", len(rows), queue=self._queue)
            self._scan_at = now + SCAN_INTERVAL
            lease, own = self._options.lease, self._options.store_then_ack
            self._claimed.extend(
                Todo(*(*row, Hold(self._ledger, lease, completes_itself=own, trace=traces.get(row[EVENT_ID], {}))))
                for row in rows
            )

    def _adapt(self, now: float, full: bool, ended: int) -> None:
        """Holds more where as much as is held ends within ``QUICK`` and there is more, and less where it takes long."""
        self._round_ended += ended
        took = now - self._round_at
        if self._round_ended >= self._most:
            if full and took < QUICK:
                self._most = min(MOST_HELD, self._most * 2)
        elif took <= SLOW:
            return
        if took > SLOW:
            self._most = max(self._prefetch, self._most // 2)
        self._round_ended, self._round_at = 0, now

    def _extend_leases(self, now: float) -> None:
        if now < self._extend_at:
            return
        with self._changed:
            # What has ended and is not written yet is held, too: after an outage it would be requeued, and done again.
            ended = [end.todo for end in self._ended]
            held = [todo for todo in (*self._in_flight.values(), *self._claimed, *ended) if not todo.hold.lost]
        if held:
            keys = [(todo.id, todo.owner or "") for todo in held]
            began = time.monotonic()
            with self._ledger.transaction(timeout=self._patience, doing=f"leases of {self._queue}") as transaction:
                ours = extend_leases(transaction.connection, keys, lease=self._options.lease, skip_locked=True)
            with self._changed:
                running = {todo.id for todo in self._in_flight.values() if todo.hold.receipt is None}
            for todo in held:
                if todo.id in ours:
                    todo.hold.extended_at = began
                # What has ended meanwhile is nobody's any more, and that is right.
                elif todo.id in running:
                    self._endings.say_lost(todo, "its lease has gone to another while its handler runs")
        self._extend_at = now + self._options.lease.total_seconds() / 3

    def _requeue_expired(self, now: float) -> None:
        if now < self._requeue_at or self._stopping:
            return
        with self._ledger.transaction(doing=f"requeue todos of {self._queue}") as transaction:
            requeued = reap_expired(transaction.connection, queue=self._queue)
        self._nudged = self._nudged or requeued.pending > 0
        self._requeue_at = now + REQUEUE_INTERVAL

    def _offer(self, todo: Todo) -> MessageProxy:
        message: dramatiq.Message[None] = dramatiq.Message(
            queue_name=self._queue_name,
            actor_name=self._actor.actor_name,
            args=(todo,),
            kwargs={},
            options={"max_retries": 0},
            # As unique as Dramatiq's own, which costs a random UUID: an owner is new with every claim.
            message_id=f"{todo.owner}/{todo.id}",
        )
        with self._changed:
            self._in_flight[message.message_id] = todo
        return Offer(message)

    def _pause(self, deadline: float, seconds: float, *, wake: bool = True) -> MessageProxy | None:
        """Waits until something ended or was announced, or ``seconds`` or the worker's patience are over."""
        with self._changed:
            if not (
                wake and (self._ended or (self._nudged and self._held_count() < self._most and not self._stopping))
            ):
                wait = min(seconds, deadline - time.monotonic())
                if wait > 0:
                    self._changed.wait(wait)
        return None

    def _held_count(self) -> int:
        return len(self._in_flight) + len(self._claimed)

    # Answering: the worker's threads

    def ack(self, message: MessageProxy) -> None:
        """Notes how the todo ended; ``nack`` is the same, as how Dramatiq ended its message says nothing of it."""
        with self._changed:
            todo = self._in_flight.pop(message.message_id, None)
            failure = message.failure if isinstance(message, Offer) else None
            end = self._endings.of(todo, failure) if todo is not None else None
            if end is not None:
                self._ended.append(end)
            self._changed.notify_all()

    nack = ack

    # Ending

    def stop(self) -> None:
        """Claims nothing more: the worker is about to stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Takes back what the worker has not begun: it will be pending, with no attempt spent."""
        for message in messages:
            with self._changed:
                todo = self._in_flight.pop(message.message_id, None)
                if todo is not None:
                    self._ended.append(End(todo))

    def close(self) -> None:
        """Writes what has ended and returns what was not begun, when the worker stops; else all that is held stays."""
        if not self._stopping:
            return
        with self._changed:
            self._ended += [End(todo) for todo in self._claimed]
            self._claimed.clear()
            for message_id, todo in list(self._in_flight.items()):
                if not todo.hold.begun:
                    del self._in_flight[message_id]
                    self._ended.append(End(todo))
        if not self._ended:
            return
        try:
            self._exchange(0)
            if self._ended:
                # The ledger has refused one of them: one by one, then.
                self._exchange(0)
        except LedgerError as error:
            logger.warning(
                "todo queue %s: %d todos stay claimed until their leases run out: %s",
                self._queue,
                len(self._ended),
                safe_text(error),
                extra=self._fields,
            )
