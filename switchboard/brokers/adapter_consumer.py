"""The consumer of an ``adapter.<name>`` queue: reads, offers to the worker, acknowledges what is stored."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import dramatiq
from dramatiq.broker import MessageProxy

from ..backoff import Outage
from ..errors import AckFailed, BrokerUnavailable, LedgerError, LedgerUnavailable
from ..ledger import Ledger
from ..model import Batch, Delivery, Route
from ..pull import PullAdapter
from ..redact import safe_text
from ..telemetry.metrics import expose
from ..telemetry.pulse import Beat
from .gate import IngestGate
from .ledger_side import LedgerSide
from .offer import Offer
from .settlement import Settlement
from .triage import Triage

logger = logging.getLogger(__name__)

#: Batches of one adapter in flight in a process: the next is read while the last one commits.
MAX_IN_FLIGHT = 2

#: Seconds after boot in which nothing is read, and in which nothing suspect is touched: a process killed in its first
#: moments can leave Dramatiq's parent deaf to SIGTERM, so what may kill its reader must not be tried that early.
BOOT_PAUSE, SUSPECT_PAUSE = 1.0, 2.0

#: Seconds between two looks at what others left behind, at most.
LONGEST_LEFT_BEHIND_INTERVAL = 5.0

#: Seconds until it is looked again whether any of a full waiting room is due.
FULL_PAUSE = 0.1

#: Seconds until a batch that may not be ingested beside another is offered again.
GATE_PAUSE = 0.02


def ingest_actor_name(adapter: str) -> str:
    """The actor that stores the batches of the adapter with that name."""
    return f"ingest.{adapter}"


class AdapterConsumer(dramatiq.Consumer):
    """One a queue and broker, for the broker's life: what it holds survives Dramatiq's restarts of consumers.

    ``__next__``, ``close`` and ``requeue`` are called by the consumer's thread, ``ack`` and ``nack`` by the worker's
    threads. ``__next__`` never raises: an outage of either side ends reading, is waited out with backoff, and
    reading goes on where it was.
    """

    def __init__(
        self,
        adapter: PullAdapter,
        route: Route,
        queue_name: str,
        ledger: Ledger,
        gate: IngestGate,
        timeout_seconds: float,
    ) -> None:
        options = adapter.options
        self._adapter = adapter
        self._queue_name = queue_name
        self._gate = gate
        self._timeout = timeout_seconds
        self._changed = threading.Condition()
        self._stopping = False
        #: By message id: offered to the worker and not yet answered.
        self._in_flight: dict[str, Batch] = {}
        self._triage = Triage(
            route, batch=options.batch, batch_bytes=options.batch_bytes, max_deliveries=options.max_deliveries
        )
        #: After an outage, until a batch is stored.
        self._on_trial = False
        #: Their connection was lost in the store: an outage, or their own doing, as the next probe will show.
        self._unjudged: list[Batch] = []
        self._settlement = Settlement(adapter)
        self._fields: dict[str, object] = {"adapter": adapter.name, "broker": adapter.broker}
        self._source_outage = Outage(f"adapter {adapter.name}: source {adapter.broker}", logger, self._fields)
        self._ledger = LedgerSide(adapter, ledger, self._source_outage, logger, self._fields)
        now = time.monotonic()
        #: What this consumer last did, for the process's pulse.
        self.beat = Beat(queue_name, looped_at=now)
        self._begin_at = now + BOOT_PAUSE
        self._suspects_at = now + SUSPECT_PAUSE
        claim_idle = options.claim_idle.total_seconds()
        self._keep_seconds = claim_idle / 4
        self._keep_at = now
        self._left_behind_seconds = min(claim_idle / 4, LONGEST_LEFT_BEHIND_INTERVAL)
        self._left_behind_at = now
        expose(adapter=adapter.name)

    # Reading: the consumer's thread

    def __next__(self) -> MessageProxy | None:
        deadline = time.monotonic() + self._timeout
        self.beat.looped()
        try:
            if not self._stopping:
                return self._next(deadline)
            # An answer at once would spin: the worker asks until its threads have ended.
            time.sleep(self._timeout)
            self._keep_claimed()
        except (BrokerUnavailable, AckFailed) as error:
            self._source_outage.failed(error)
            # A reply that was lost on the way left its messages with us.
            self._left_behind_at = 0.0
        except LedgerError as error:
            self._ledger.outage.failed(error)
        return None

    def _next(self, deadline: float) -> MessageProxy | None:
        now = time.monotonic()
        if now < self._begin_at:
            return self._pause(deadline, self._begin_at - now)
        if self._source_outage.wait_seconds:
            return self._pause(deadline, self._source_outage.wait_seconds)
        self._keep_claimed()
        if self._settlement.settle():
            self._source_outage.over()
        if self._ledger.outage.away or self._unjudged:
            if self._ledger.outage.wait_seconds:
                return self._pause(deadline, self._ledger.outage.wait_seconds)
            if not self._on_trial:
                self._probe()
        self._ledger.attend(self.storing_since)
        if len(self._in_flight) >= (1 if self._on_trial else MAX_IN_FLIGHT):
            if not self._on_trial:
                self.beat.excused("busy")
            return self._pause(deadline, self._timeout)
        with self._changed:
            full = len(self._triage) >= MAX_IN_FLIGHT * self._adapter.options.batch
        if self._ledger.enabled and not full and now >= max(self._left_behind_at, self._suspects_at):
            self._look_for_left_behind()
        with self._changed:
            batch = self._triage.next(suspects=now >= self._suspects_at)
        if batch is not None:
            return self._enter(batch, deadline)
        if full:
            # What waits has its times; to read on would only pile it up.
            self.beat.excused("busy")
            return self._pause(deadline, FULL_PAUSE)
        if not self._ledger.enabled:
            self.beat.excused("disabled, or read by another process")
            return self._pause(deadline, self._ledger.due_at - now)
        return self._read(deadline)

    def _read(self, deadline: float) -> MessageProxy | None:
        options = self._adapter.options
        left = timedelta(seconds=max(0.0, min(deadline, self._ledger.due_at) - time.monotonic()))
        deliveries = self._adapter.receive(options.batch, options.batch_bytes, left)
        if not len(self._settlement):
            # Else it refuses to be told something, and may go on refusing.
            self._source_outage.over()
        self._answered()
        self._ledger.note_gaps(self._adapter.gaps())
        if not deliveries:
            return None
        with self._changed:
            self._triage.read(deliveries)
            batch = self._triage.next(suspects=False)
        return self._enter(batch, deadline) if batch is not None else None

    def _look_for_left_behind(self) -> None:
        options = self._adapter.options
        found = self._adapter.left_behind(options.batch, options.batch_bytes)
        self._answered()
        if found:
            with self._changed:
                self._triage.left_behind(found)
        else:
            self._left_behind_at = time.monotonic() + self._left_behind_seconds

    def _answered(self) -> None:
        """The source has just answered: those who look at the ledger see it, and those who look at this process."""
        self._ledger.polled()
        self.beat.answered()

    def _enter(self, batch: Batch, deadline: float) -> MessageProxy | None:
        if self._gate.enter(self._queue_name, alone=batch.alone):
            return self._offer(batch)
        self.beat.excused("busy")
        with self._changed:
            self._triage.put_back(batch)
        return self._pause(deadline, GATE_PAUSE)

    def _offer(self, batch: Batch) -> MessageProxy:
        """A fresh message each time: an old proxy stays failed, and its actor would never run."""
        message: dramatiq.Message[None] = dramatiq.Message(
            queue_name=self._queue_name,
            actor_name=ingest_actor_name(self._adapter.name),
            args=(batch,),
            kwargs={},
            options={"max_retries": 0},
        )
        with self._changed:
            self._in_flight[message.message_id] = batch
        return Offer(message)

    @property
    def storing_since(self) -> float | None:
        """The monotonic second at which the ledger was first asked to store the oldest batch that it has not stored."""
        with self._changed:
            storing = [batch.begun_at for batch in self._in_flight.values() if batch.begun and not batch.stored]
        return min(storing, default=None)

    def _pause(self, deadline: float, seconds: float) -> MessageProxy | None:
        """Waits until something changed here, or ``seconds`` or the worker's patience are over: None to offer."""
        wait = min(seconds, deadline - time.monotonic())
        if wait > 0:
            with self._changed:
                self._changed.wait(wait)
        return None

    def _probe(self) -> None:
        """Asks the ledger for an answer: with one, what was alone in the store as it failed has itself to blame."""
        with self._changed:
            unjudged, self._unjudged = self._unjudged, []
        was_away = self._ledger.outage.away
        answered = False
        try:
            self._ledger.probe()
            answered = True
            with self._changed:
                # One batch at a time until one is stored: a read-only server answers, and takes none.
                self._on_trial = was_away and len(self._triage) > 0
            if not self._on_trial:
                self._ledger.outage.over()
        finally:
            with self._changed:
                for batch in unjudged:
                    if answered and not was_away:
                        self._triage.failed(batch, "the ledger lost its connection as it was stored")
                    else:
                        self._triage.interrupted(batch)
                        self._settlement.miscounted(batch.deliveries)

    def _keep_claimed(self) -> None:
        now = time.monotonic()
        if now < self._keep_at:
            return
        with self._changed:
            left = self._left()
        if left:
            self._adapter.keep(left)
        self._keep_at = now + self._keep_seconds

    # Answering: the worker's threads

    def ack(self, message: MessageProxy) -> None:
        """Acknowledges what the batch's receipt says is stored; a batch without one is offered again.

        ``nack`` is the same function: how a message ended is Dramatiq's affair, and only the commit counts
        (SPEC-0002, Store-Then-Ack Coupling).
        """
        with self._changed:
            batch = self._in_flight.get(message.message_id)
        if batch is None:
            logger.warning(
                "adapter %s: message %s is unknown here",
                self._adapter.name,
                message.message_id,
                extra=self._fields | {"message_id": message.message_id},
            )
            return
        try:
            if batch.stored:
                self._acknowledge(batch)
        finally:
            with self._changed:
                # It may be gone already: taken back by a stop.
                if self._in_flight.pop(message.message_id, None) is not None:
                    self._sort(batch, message.failure if isinstance(message, Offer) else None)
                self._changed.notify_all()
            self._gate.leave()

    nack = ack

    def _acknowledge(self, batch: Batch) -> None:
        self._settlement.stored(batch)
        try:
            self._settlement.settle()
        except (BrokerUnavailable, AckFailed) as error:
            # The todos are safe. The reading thread tries again; a redelivery until then dedups.
            self._source_outage.failed(error)

    def _sort(self, batch: Batch, failure: BaseException | None) -> None:
        """What is not stored waits for its next try, in the company that its failure calls for."""
        if batch.stored:
            self._on_trial = False
            self._ledger.outage.over()
            refused = [replace(delivery, last_error=why) for delivery, why in batch.refused]
            if refused and batch.alone:
                self._triage.failed(batch, refused[0].last_error)
            elif refused:
                self._triage.refused(refused)
        elif isinstance(failure, BrokerUnavailable):
            self._source_outage.failed(failure)
            self._triage.put_back(batch)
        elif isinstance(failure, LedgerUnavailable):
            self._on_trial = False
            if batch.begun and batch.alone and failure.connection_lost:
                self._unjudged.append(batch)
                return
            self._ledger.outage.failed(failure)
            if batch.begun and batch.company in ("again", "alone"):
                self._settlement.miscounted(batch.deliveries)
            if batch.begun:
                self._triage.interrupted(batch)
            else:
                self._triage.put_back(batch)
        elif batch.begun:
            self._triage.failed(batch, safe_text(failure) if failure is not None else "")
        else:
            # Skipped, or refused by a middleware before it began.
            batch.not_before = time.monotonic() + 1.0
            self._triage.put_back(batch)

    # Ending

    @property
    def stopped(self) -> bool:
        """Whether its worker has been told to stop: another worker on the same broker wants another consumer."""
        return self._stopping

    def stop(self) -> None:
        """Ends reading: the worker is about to stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Takes back what the worker has not begun."""
        for message in messages:
            with self._changed:
                batch = self._in_flight.pop(message.message_id, None)
                if batch is not None:
                    self._triage.put_back(batch)
            if batch is not None:
                self._gate.leave()

    def close(self) -> None:
        """Gives back what is left when the worker stops, and closes the source's connections.

        After an error Dramatiq closes the consumer too, and asks for it again: then all that is held stays.
        """
        if self._stopping:
            self._end()
            self._ledger.release()
        self._adapter.close()

    def _left(self) -> list[Delivery]:
        """What is in flight or waits, and is not stored."""
        batches = [batch for batch in (*self._in_flight.values(), *self._unjudged) if not batch.stored]
        return [*self._triage.deliveries(), *(delivery for batch in batches for delivery in batch.deliveries)]

    def _end(self) -> None:
        with self._changed:
            left = self._left()
            for batch in self._in_flight.values():
                if batch.stored:
                    self._settlement.stored(batch)
            self._in_flight.clear()
            self._unjudged.clear()
            self._triage.clear()
        try:
            self._settlement.settle()
            if left:
                self._adapter.give_back(left)
                logger.info("adapter %s: gave back %d deliveries", self._adapter.name, len(left), extra=self._fields)
        except (BrokerUnavailable, AckFailed) as error:
            logger.warning(
                "adapter %s: %d deliveries stay un-acknowledged, to be delivered again: %s",
                self._adapter.name,
                len(left) + len(self._settlement),
                error,
                extra=self._fields,
            )
