"""The reaper: what dead workers left is taken back, and the index that every claim depends on is kept healthy."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from .errors import BrokerUnavailable, LedgerError
from .ledger import (
    Ledger,
    Requeued,
    cleanup_holders,
    database_time,
    forget_consumers,
    inspect_pending_index,
    list_upkeep,
    note_upkeep,
    reap_expired,
    rebuild_pending_index,
    take_upkeep,
)
from .ledger.claims import REQUEUE_STEP
from .pull import PullAdapter

logger = logging.getLogger(__name__)

#: How long requeuing goes on in one run; the next run goes on where it was.
BUDGET = timedelta(seconds=40)

#: The shortest time between two rebuilds of the pending index: one that changes nothing must not be every minute's.
REBUILD_INTERVAL = timedelta(hours=1)

_REBUILD_JOB = "rebuild_pending_index"


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
            reaped = _free_dead(adapter, reaped)
        forget_consumers(guard.connection)
        reaped = replace(reaped, rebuilt=int(_look_after_index(ledger)))
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
        if step.pending + step.failed < REQUEUE_STEP or time.monotonic() >= deadline:
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


def _look_after_index(ledger: Ledger) -> bool:
    """Names who holds cleaning up, and rebuilds the index where it is bloated; whether it did."""
    with ledger.transaction(doing="reap") as transaction:
        connection = transaction.connection
        index = inspect_pending_index(connection)
        holders = cleanup_holders(connection)
        rebuilt = [row.last_succeeded_at for row in list_upkeep(connection) if row.job == _REBUILD_JOB]
        now = database_time(connection)
    for holder in holders[:1]:
        logger.warning(
            "a transaction of %s (pid %s, %s) has been open for %d minutes: until it ends, dead rows of todos stay, "
            "%d by now, and claims slow down",
            holder.who,
            holder.pid,
            holder.state,
            holder.age_seconds // 60,
            index.dead_rows,
        )
    if not index.bloated or holders or any(now - at < REBUILD_INTERVAL for at in rebuilt):
        return False
    try:
        rebuild_pending_index(ledger)
    except LedgerError as error:
        logger.warning("idx_todos_pending has %d bytes and needs %d: %s", index.size_bytes, index.dense_bytes, error)
        return False
    with ledger.transaction(doing="reap") as transaction:
        note_upkeep(transaction.connection, _REBUILD_JOB, now, {"bytes_before": index.size_bytes})
    logger.info("rebuilt idx_todos_pending, which had %d bytes and needed %d", index.size_bytes, index.dense_bytes)
    return True
