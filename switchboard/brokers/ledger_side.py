"""An adapter's dealings with the ledger beside the store itself: may it read, is the ledger there, what has ended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from datetime import timedelta

from ..backoff import Outage
from ..errors import LedgerError, NotFound
from ..ledger import (
    ExclusiveLock,
    Ledger,
    adapter_enabled,
    forget_acks,
    insert_event,
    note_poll,
    ready_acks,
)
from ..model import Delivery
from ..process_name import process_name
from ..pull import Gap, PullAdapter

#: Seconds between two looks at the adapter's ``enabled`` flag: a change is honoured within two.
ENABLED_INTERVAL = 1.0

#: Seconds between two notes in the ledger of when the source was last read, made after such a look.
NOTE_INTERVAL = 5.0

#: How long that look may take.
LOOK_TIMEOUT = timedelta(seconds=2)

#: Seconds between two looks at which todos have ended, where their entries wait for it, and entries a look.
COMPLETED_INTERVAL, COMPLETED_PAGE = 0.4, 1_000

#: The type of the event that records a gap of a source that does not deliver again; it has no todo.
GAP_EVENT = "switchboard.gap"


class LedgerSide:
    """One an adapter's consumer, used by its thread. Every method that asks raises ``LedgerError`` where no answer
    comes; ``outage`` is for its caller to keep.
    """

    def __init__(
        self,
        adapter: PullAdapter,
        ledger: Ledger,
        source_outage: Outage,
        logger: logging.Logger,
        fields: dict[str, object],
    ) -> None:
        self._adapter = adapter
        self._source_outage = source_outage
        self._ledger = ledger
        self._logger = logger
        self._fields = fields
        self._lock = ExclusiveLock(ledger, f"switchboard.adapter.{adapter.name}") if adapter.exclusive else None
        self._gaps: list[Gap] = []
        now = time.monotonic()
        self._look_at = self._note_at = now
        self._polled_at: float | None = None
        self._standby = False
        self._completed_at = now if adapter.options.ack == "complete" else float("inf")
        self.outage = Outage(f"adapter {adapter.name}: the ledger", logger, fields)
        self._noting = Outage(f"adapter {adapter.name}: noting its polls", logger, fields)
        #: Whether the adapter may read, as of the last look.
        self.enabled = False

    @property
    def due_at(self) -> float:
        """The monotonic second at which something is to be asked again."""
        return min(self._look_at, self._completed_at)

    def polled(self) -> None:
        """The source has answered just now."""
        if self._polled_at is None:
            self._note_at = 0.0
        self._polled_at = time.monotonic()

    def attend(self, storing_since: float | None) -> None:
        """Asks what is due: whether the adapter may read, and which todos have ended; and says with it that this
        consumer is there, and since which monotonic second its oldest batch is being stored (None: it has none).
        """
        self._record_gaps()
        if time.monotonic() >= self._look_at:
            self.enabled = self._is_enabled() and self._is_alone()
            if not self.enabled and self._lock is not None:
                # A subscription that nobody reads would fill the server's buffers, and keep the others out.
                self._adapter.close()
                self._lock.release()
            self._note(storing_since)
            self._look_at = time.monotonic() + ENABLED_INTERVAL
        self._acknowledge_completed()

    def probe(self) -> None:
        """Asks for an answer. It ends no outage: a server that cannot write answers, too."""
        self._ledger.probe()

    def note_gaps(self, gaps: Iterable[Gap]) -> None:
        """Says that the source was not listened to, and has it recorded with the next ``attend``."""
        for gap in gaps:
            self._gaps.append(gap)
            self._logger.warning(
                "adapter %s: nobody listened %s; what was sent then is lost",
                self._adapter.name,
                "before now" if gap.seconds is None else f"for {gap.seconds:.1f} s",
                extra=self._fields,
            )

    def release(self) -> None:
        """Lets another process read an exclusive source."""
        if self._lock is not None:
            self._lock.release()

    def _is_enabled(self) -> bool:
        with self._ledger.transaction(timeout=LOOK_TIMEOUT, doing=f"look up adapter {self._adapter.name}") as tx:
            try:
                return adapter_enabled(tx.connection, self._adapter.name)
            except NotFound:
                # Its row was taken out while it ran: nobody has said that it may consume.
                return False

    def _note(self, storing_since: float | None) -> None:
        """Says that this consumer is there. A ledger that does not take it keeps nobody from reading."""
        if time.monotonic() < self._note_at:
            return
        errors = [each for each in (self._source_outage.last_error, self.outage.last_error) if each is not None]
        at, error = max(errors, default=(None, ""))
        try:
            with self._ledger.transaction(timeout=LOOK_TIMEOUT, doing="note a poll") as tx:
                note_poll(
                    tx.connection,
                    process=process_name(),
                    adapter=self._adapter.name,
                    polled_ago=_ago(self._polled_at),
                    storing_for=_ago(storing_since),
                    standby=self._standby,
                    error=None if (age := _ago(at)) is None else (error, age),
                )
            self._noting.over()
        except LedgerError as failure:
            self._noting.failed(failure)
        self._note_at = time.monotonic() + NOTE_INTERVAL

    def _is_alone(self) -> bool:
        """Whether this process is the one that may read an exclusive source; the others stand by."""
        alone = self._lock is None or self._lock.held() or bool(self._lock.take())
        if self._standby is alone:
            # Who looks at the consumers sees a change at once.
            self._standby, self._note_at = not alone, 0.0
        return alone

    def _record_gaps(self) -> None:
        while self._gaps:
            with self._ledger.transaction(doing="record a gap") as tx:
                insert_event(
                    tx.connection,
                    source=self._adapter.name,
                    event_type=GAP_EVENT,
                    verify_detail=self._adapter.identity(),
                    content_type="application/json",
                    payload=json.dumps({"seconds": self._gaps[0].seconds}).encode(),
                )
            del self._gaps[0]

    def _acknowledge_completed(self) -> None:
        """Acknowledges what waited for its todo's end; any worker may, and each does where it finds it."""
        name = self._adapter.name
        while time.monotonic() >= self._completed_at:
            with self._ledger.transaction(doing=f"acknowledge completed todos of adapter {name}") as tx:
                ready = ready_acks(tx.connection, name, limit=COMPLETED_PAGE)
                if ready:
                    self._adapter.acknowledge([Delivery(b"", None, "", handle=handle) for _, handle in ready])
                    forget_acks(tx.connection, [ack_id for ack_id, _ in ready])
            if len(ready) < COMPLETED_PAGE:
                self._completed_at = time.monotonic() + COMPLETED_INTERVAL


def _ago(at: float | None) -> timedelta | None:
    """How long ago that monotonic second was."""
    return None if at is None else timedelta(seconds=time.monotonic() - at)
