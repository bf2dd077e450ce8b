"""The actors that periodiq schedules: retention and the reaper."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
from periodiq import PeriodiqMiddleware

from .. import ledger
from ..brokers import AdapterQueues
from ..brokers.retries import never
from ..errors import LedgerUnavailable
from ..ledger.retention import PRUNE_TIMEOUT
from ..reaper import reap
from ..schedules import UpkeepOptions, schedule

logger = logging.getLogger(__name__)

#: Upkeep has a queue of its own: a message later than periodiq's ``skip_delay`` is skipped.
QUEUE = "switchboard.upkeep"

#: How long a run may take: what was not done by then is the next one's.
PRUNE_LIMIT, REAP_LIMIT = timedelta(minutes=55), timedelta(minutes=15)


def declare_upkeep(
    broker: AdapterQueues, options: UpkeepOptions
) -> tuple[dramatiq.Actor[Any, Any], dramatiq.Actor[Any, Any]]:
    """Declares ``switchboard.prune`` and ``switchboard.reap``, each with its schedule; adds periodiq's middleware where
    it is missing.
    """
    if not any(isinstance(middleware, PeriodiqMiddleware) for middleware in broker.middleware):
        broker.add_middleware(PeriodiqMiddleware())

    def prune() -> None:
        with broker.ledger.transaction(timeout=PRUNE_TIMEOUT, doing="prune") as transaction:
            pruned = ledger.prune(transaction.connection)
        if pruned is None:
            logger.info("another session is pruning")
            return
        logger.info("pruned %d events, %d todos and %d dead letters", pruned.events, pruned.todos, pruned.dead_letters)
        if pruned.unresolved:
            logger.warning("pruned %d dead letters that nobody had replayed or discarded", pruned.unresolved)

    def reap_all() -> None:
        reaped = reap(broker.ledger, broker.adapters.values())
        if reaped is None:
            logger.info("another session is reaping")
        elif reaped.did_something:
            logger.info("reaped: %s", reaped)

    return (
        _declare(broker, "prune", prune, options.prune, PRUNE_LIMIT),
        _declare(broker, "reap", reap_all, options.reap, REAP_LIMIT),
    )


def _declare(
    broker: AdapterQueues, name: str, function: Callable[[], None], expression: str, limit: timedelta
) -> dramatiq.Actor[Any, Any]:
    actor: dramatiq.Actor[Any, Any] = dramatiq.actor(
        actor_name=f"switchboard.{name}",
        queue_name=QUEUE,
        broker=broker,
        periodic=schedule(expression),
        time_limit=int(limit.total_seconds() * 1000),
        # The next tick is the retry.
        max_retries=0,
        retry_when=never,
        throws=LedgerUnavailable,
    )(function)
    return actor
