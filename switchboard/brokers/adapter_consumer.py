"""The consumer of an ``adapter.<name>`` queue: reads, offers to the worker, acknowledges what is stored."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta

import dramatiq
from dramatiq.broker import MessageProxy
from dramatiq.common import compute_backoff

from ..backoff import Outage
from ..errors import BrokerUnavailable, LedgerError, LedgerUnavailable, NotFound
from ..ledger import Ledger, adapter_enabled
from ..model import Batch, Delivery, Route
from ..pull import PullAdapter

logger = logging.getLogger(__name__)

#: Batches of one adapter in flight in a process: the next is read while the last one commits.
MAX_IN_FLIGHT = 2

#: Seconds between two looks at the adapter's ``enabled`` flag: a change is honoured within two.
ENABLED_INTERVAL = 1.0

#: How long that look may take.
LOOK_TIMEOUT = timedelta(seconds=2)

#: Seconds after boot in which nothing is read: a process killed in its first moments can leave Dramatiq's parent
#: deaf to SIGTERM, so a message that kills its reader must not be read that early.
BOOT_PAUSE = 1.0

#: Milliseconds until a batch that failed, though the ledger is there, is offered again: at first, and at most.
RETRY_FIRST_WAIT, RETRY_LONGEST_WAIT = 1_000, 60_000


def ingest_actor_name(adapter: str) -> str:
    """The actor that stores the batches of the adapter with that name."""
    return f"ingest.{adapter}"


class _Offer(MessageProxy):
    """A batch on its way through the worker, which notes why it failed."""

    failure: BaseException | None = None

    def stuff_exception(self, exception: BaseException) -> None:
        self.failure = exception
        super().stuff_exception(exception)


class _Held:
    """A batch that waits to be offered, not before a time that moves with its failures."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.attempts = 0
        self.not_before = 0.0

    def failed(self) -> None:
        self.attempts, wait = compute_backoff(self.attempts, factor=RETRY_FIRST_WAIT, max_backoff=RETRY_LONGEST_WAIT)
        self.not_before = time.monotonic() + wait / 1000


class AdapterConsumer(dramatiq.Consumer):
    """One a queue and broker, for the broker's life: what it holds survives Dramatiq's restarts of consumers.

    ``__next__``, ``close`` and ``requeue`` are called by the consumer's thread, ``ack`` and ``nack`` by the worker's
    threads. ``__next__`` never raises: an outage of either side ends reading, is waited out with backoff, and
    reading goes on where it was.
    """

    def __init__(
        self, adapter: PullAdapter, route: Route, queue_name: str, ledger: Ledger, timeout_seconds: float
    ) -> None:
        self._adapter = adapter
        self._route = route
        self._queue_name = queue_name
        self._ledger = ledger
        self._timeout = timeout_seconds
        self._changed = threading.Condition()
        self._stopping = False
        #: By message id: offered to the worker and not yet answered.
        self._in_flight: dict[str, _Held] = {}
        #: Not stored, to be offered again.
        self._waiting: deque[_Held] = deque()
        #: Stored, and still to be acknowledged.
        self._unacknowledged: list[Delivery] = []
        fields: dict[str, object] = {"adapter": adapter.name, "broker": adapter.broker}
        self._fields = fields
        self._source_outage = Outage(f"adapter {adapter.name}: source {adapter.broker}", logger, fields)
        self._ledger_outage = Outage(f"adapter {adapter.name}: the ledger", logger, fields)
        now = time.monotonic()
        self._begin_at = now + BOOT_PAUSE
        self._enabled = False
        self._look_at = now
        self._keep_seconds = adapter.options.claim_idle.total_seconds() / 4
        self._keep_at = now

    # Reading: the consumer's thread

    def __next__(self) -> MessageProxy | None:
        deadline = time.monotonic() + self._timeout
        try:
            if not self._stopping:
                return self._next(deadline)
            # An answer at once would spin: the worker asks until its threads have ended.
            time.sleep(self._timeout)
            self._keep_claimed()
        except BrokerUnavailable as error:
            self._source_outage.failed(error)
        except LedgerError as error:
            self._ledger_outage.failed(error)
        return None

    def _next(self, deadline: float) -> MessageProxy | None:
        now = time.monotonic()
        if now < self._begin_at:
            return self._pause(deadline, self._begin_at - now)
        if not self._ledger_outage.away and now >= self._look_at:
            self._enabled = self._look_at_ledger()
            self._look_at = now + ENABLED_INTERVAL
        if self._source_outage.wait_seconds:
            return self._pause(deadline, self._source_outage.wait_seconds)
        self._keep_claimed()
        self._acknowledge_stored()
        if self._ledger_outage.away:
            if self._ledger_outage.wait_seconds:
                return self._pause(deadline, self._ledger_outage.wait_seconds)
            self._ledger.probe()
            self._ledger_outage.over()
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            return self._pause(deadline, self._timeout)
        if (held := self._due()) is not None:
            return self._offer(held)
        if not self._enabled:
            return self._pause(deadline, self._look_at - now)
        return self._read(deadline)

    def _read(self, deadline: float) -> MessageProxy | None:
        options = self._adapter.options
        left = timedelta(seconds=max(0.0, min(deadline, self._look_at) - time.monotonic()))
        deliveries = self._adapter.receive(options.batch, options.batch_bytes, left)
        self._source_outage.over()
        if not deliveries:
            return None
        first, *more = [_Held(batch) for batch in self._batches(deliveries)]
        with self._changed:
            self._waiting.extend(more)
        return self._offer(first)

    def _due(self) -> _Held | None:
        """The first waiting batch whose time has come, taken out."""
        now = time.monotonic()
        with self._changed:
            for held in self._waiting:
                if held.not_before <= now:
                    self._waiting.remove(held)
                    return held
        return None

    def _batches(self, deliveries: list[Delivery]) -> Iterable[Batch]:
        """One batch, or several where the deliveries are larger than ``batch_bytes`` together."""
        batch: list[Delivery] = []
        size = 0
        for delivery in deliveries:
            if batch and size + len(delivery.body) > self._adapter.options.batch_bytes:
                yield Batch(self._route, batch)
                batch, size = [], 0
            batch.append(delivery)
            size += len(delivery.body)
        yield Batch(self._route, batch)

    def _offer(self, held: _Held) -> MessageProxy:
        """A fresh message each time: an old proxy stays failed, and its actor would never run."""
        message: dramatiq.Message[None] = dramatiq.Message(
            queue_name=self._queue_name,
            actor_name=ingest_actor_name(self._adapter.name),
            args=(held.batch,),
            kwargs={},
            options={"max_retries": 0},
        )
        with self._changed:
            self._in_flight[message.message_id] = held
        return _Offer(message)

    def _pause(self, deadline: float, seconds: float) -> MessageProxy | None:
        """Waits until something changed here, or ``seconds`` or the worker's patience are over: None to offer."""
        wait = min(seconds, deadline - time.monotonic())
        if wait > 0:
            with self._changed:
                self._changed.wait(wait)
        return None

    def _look_at_ledger(self) -> bool:
        with self._ledger.transaction(timeout=LOOK_TIMEOUT, doing=f"look up adapter {self._adapter.name}") as tx:
            try:
                return adapter_enabled(tx.connection, self._adapter.name)
            except NotFound:
                # Its row was taken out while it ran: nobody has said that it may consume.
                return False

    def _keep_claimed(self) -> None:
        now = time.monotonic()
        if now < self._keep_at:
            return
        with self._changed:
            _, left = self._deliveries()
        if left:
            self._adapter.keep(left)
        self._keep_at = now + self._keep_seconds

    def _acknowledge_stored(self) -> None:
        with self._changed:
            stored, self._unacknowledged = self._unacknowledged, []
        if not stored:
            return
        try:
            self._adapter.acknowledge(stored)
        except BrokerUnavailable:
            with self._changed:
                self._unacknowledged += stored
            raise
        self._source_outage.over()

    # Answering: the worker's threads

    def ack(self, message: MessageProxy) -> None:
        """Acknowledges what the batch's receipt says is stored; a batch without one is offered again.

        ``nack`` is the same function: how a message ended is Dramatiq's affair, and only the commit counts
        (SPEC-0002, Store-Then-Ack Coupling).
        """
        with self._changed:
            held = self._in_flight.get(message.message_id)
        if held is None:
            logger.warning("adapter %s: message %s is unknown here", self._adapter.name, message.message_id)
            return
        if held.batch.stored:
            self._acknowledge(held.batch)
        else:
            self._failed(held, message)
        with self._changed:
            del self._in_flight[message.message_id]
            if not held.batch.stored:
                self._waiting.append(held)
            self._changed.notify_all()

    nack = ack

    def _acknowledge(self, batch: Batch) -> None:
        try:
            self._adapter.acknowledge(batch.deliveries)
        except BrokerUnavailable as error:
            # The todos are safe. The reading thread tries again; a redelivery until then dedups.
            self._source_outage.failed(error)
            with self._changed:
                self._unacknowledged += batch.deliveries

    def _failed(self, held: _Held, message: MessageProxy) -> None:
        failure = message.failure if isinstance(message, _Offer) else None
        if isinstance(failure, LedgerUnavailable):
            self._ledger_outage.failed(failure)
        else:
            held.failed()

    # Ending

    def stop(self) -> None:
        """Ends reading: the worker is about to stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Takes back what the worker has not begun."""
        for message in messages:
            with self._changed:
                held = self._in_flight.pop(message.message_id, None)
                if held is not None:
                    self._waiting.append(held)

    def close(self) -> None:
        """Gives back what is left when the worker stops, and closes the source's connections.

        After an error Dramatiq closes the consumer too, and asks for it again: then all that is held stays.
        """
        if self._stopping:
            self._end()
        self._adapter.close()

    def _deliveries(self) -> tuple[list[Delivery], list[Delivery]]:
        """What is in flight or waits: the stored ones, and those that are not."""
        stored: list[Delivery] = []
        left: list[Delivery] = []
        for held in (*self._in_flight.values(), *self._waiting):
            (stored if held.batch.stored else left).extend(held.batch.deliveries)
        return stored, left

    def _end(self) -> None:
        with self._changed:
            stored, left = self._deliveries()
            stored += self._unacknowledged
            self._in_flight.clear()
            self._waiting.clear()
            self._unacknowledged = []
        try:
            if stored:
                self._adapter.acknowledge(stored)
            if left:
                self._adapter.give_back(left)
                logger.info("adapter %s: gave back %d deliveries", self._adapter.name, len(left), extra=self._fields)
        except BrokerUnavailable as error:
            logger.warning(
                "adapter %s: %d deliveries stay un-acknowledged, to be delivered again: %s",
                self._adapter.name,
                len(stored) + len(left),
                error,
                extra=self._fields,
            )
