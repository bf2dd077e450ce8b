"""The actors that periodiq schedules; each holds a lock of its transaction, as two schedulers send everything twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
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


def declare_upkeep(broker: AdapterQueues) -> tuple[dramatiq.Actor[Any, Any], dramatiq.Actor[Any, Any]]:
    """Declares ``switchboard.prune``, hourly, and ``switchboard.reap``, each minute; adds periodiq's middleware where
    it is missing.
    """
    if not any(isinstance(middleware, PeriodiqMiddleware) for middleware in broker.middleware):
        broker.add_middleware(PeriodiqMiddleware())
    return _declare(broker, "prune", _prune, "7 * * * *"), _declare(broker, "reap", _reap, "* * * * *")


def _declare(broker: AdapterQueues, name: str, function: Callable[[], None], schedule: str) -> dramatiq.Actor[Any, Any]:
    actor: dramatiq.Actor[Any, Any] = dramatiq.actor(
        actor_name=f"switchboard.{name}",
        queue_name=QUEUE,
        broker=broker,
        store_then_ack=True,
        periodic=cron(schedule),
        time_limit=TIME_LIMIT,
        # The next tick is the retry.
        max_retries=0,
    )(function)
    return actor


def _prune() -> None:
    pruned = ledger.prune(ledger.transaction())
    if pruned is not None:
        logger.info("pruned %d events and %d todos", pruned.events, pruned.todos)


def _reap() -> None:
    """Requeues what no consumer's timer does: the queues that no worker here has a handler for."""
    requeued = ledger.reap_expired(ledger.transaction())
    if requeued.pending or requeued.failed:
        logger.info("requeued %d todos, failed %d in their last attempt", requeued.pending, requeued.failed)
