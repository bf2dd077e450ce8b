"""The reaper: what dead workers left, in the ledger and at each source, is taken back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from .errors import BrokerUnavailable
from .ledger import (
    Ledger,
    Requeued,
    database_time,
    forget_consumers,
    give_way,
    look_after_pending_index,
    note_upkeep,
    reap_expired,
    take_upkeep,
)
from .ledger.claims import REQUEUE_STEP
from .pull import PullAdapter

logger = logging.getLogger(__name__)

#: How long requeuing goes on in one run; the next run goes on where it was.
BUDGET = timedelta(seconds=40)


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a run did: todos requeued and failed, deliveries that anyone may take again, consumers forgotten, sources
    that gave no answer, and indexes rebuilt.
    """

    pending: int = 0
    failed: int = 0
    deliveries: int = 0
    consumers: int = 0
    unreachable: int = 0
    rebuilt: int = 0

    @property
    def did_something(self) -> bool:
        """Whether there was anything to do."""
        return self != Reaped()

    def __str__(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in asdict(self).items())


def reap(ledger: Ledger, adapters: Iterable[PullAdapter]) -> Reaped | None:
    """Requeues the leases that have run out, frees what dead workers hold at each adapter's source, and looks after the
    pending index. None where another is at it.

    Raises ``LedgerError``; a source that gives no answer is logged and counted, and hinders nothing else.
    """
    # It holds the lock alone, and no snapshot: what is requeued commits in steps beside it.
    with ledger.transaction(doing="reap") as guard:
        if not take_upkeep(guard.connection, "reap"):
            return None
        began_at = database_time(guard.connection)
        requeued = requeue_expired(ledger)
        reaped = Reaped(requeued.pending, requeued.failed)
        for adapter in adapters:
            give_way(guard.connection, "reap")
            reaped = _free_dead(adapter, reaped)
        with ledger.transaction(doing="reap") as transaction:
            forget_consumers(transaction.connection)
        reaped = replace(reaped, rebuilt=int(look_after_pending_index(ledger)))
        note_upkeep(guard.connection, "reap", began_at, asdict(reaped))
    return reaped


def requeue_expired(ledger: Ledger, *, queue: str | None = None) -> Requeued:
    """Requeues leases that have run out, of one queue or of all, a transaction a step, within ``BUDGET``."""
    total = Requeued()
    deadline = time.monotonic() + BUDGET.total_seconds()
    while True:
        with ledger.transaction(doing="reap") as transaction:
            step = reap_expired(transaction.connection, queue=queue)
        total = Requeued(total.pending + step.pending, total.failed + step.failed)
        done = step.pending + step.failed < REQUEUE_STEP
        if done or ledger.stopping or time.monotonic() >= deadline:
            return total


def _free_dead(adapter: PullAdapter, reaped: Reaped) -> Reaped:
    try:
        freed = adapter.free_dead()
    except BrokerUnavailable as error:
        fields = {"adapter": adapter.name, "broker": adapter.broker}
        logger.warning("adapter %s: its source is not reaped: %s", adapter.name, error, extra=fields)
        return replace(reaped, unreachable=reaped.unreachable + 1)
    return replace(
        reaped,
        deliveries=reaped.deliveries + freed.deliveries,
        consumers=reaped.consumers + freed.consumers,
    )
