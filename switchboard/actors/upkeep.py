"""The actors that periodiq schedules; each holds a lock of its transaction, as two schedulers send everything twice."""

from __future__ import annotations

import logging
from typing import Any

import dramatiq
from periodiq import PeriodiqMiddleware, cron

from .. import ledger
from ..brokers import AdapterQueues

logger = logging.getLogger(__name__)

#: Upkeep has a queue of its own: a message later than periodiq's ``skip_delay`` is skipped.
QUEUE = "switchboard.upkeep"

#: Milliseconds: a pass over a large table may take long.
TIME_LIMIT = 3_600_000


def declare_upkeep(broker: AdapterQueues) -> dramatiq.Actor[Any, Any]:
    """Declares ``switchboard.prune``, hourly; adds periodiq's middleware where it is missing."""
    if not any(isinstance(middleware, PeriodiqMiddleware) for middleware in broker.middleware):
        broker.add_middleware(PeriodiqMiddleware())
    actor: dramatiq.Actor[Any, Any] = dramatiq.actor(
        actor_name="switchboard.prune",
        queue_name=QUEUE,
        broker=broker,
        store_then_ack=True,
        periodic=cron("7 * * * *"),
        time_limit=TIME_LIMIT,
        # The next tick is the retry.
        max_retries=0,
    )(_prune)
    return actor


def _prune() -> None:
    pruned = ledger.prune(ledger.transaction())
    if pruned is not None:
        logger.info("pruned %d events and %d todos", pruned.events, pruned.todos)
