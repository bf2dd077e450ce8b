"""The actors ``ingest.<adapter>``: each stores the batches of one adapter."""

from __future__ import annotations

import time
from datetime import timedelta

import dramatiq

from ..brokers import AdapterQueues, adapter_queue, ingest_actor_name
from ..brokers.retries import never
from ..errors import BrokerUnavailable, LedgerUnavailable
from ..ingest import bury, park, report, store
from ..ledger import current_transaction
from ..model import Batch, Delivery, Stored
from ..normalize import resolve_provider
from ..pull import PullAdapter
from ..telemetry.metrics import observe

#: Before a team's own actors in the worker's queue: a lower priority goes first.
PRIORITY = -100

#: Milliseconds one batch may take; a longer one is given up and tried again.
TIME_LIMIT = int(timedelta(minutes=10).total_seconds() * 1000)


def declare_ingest(broker: AdapterQueues, adapter: PullAdapter) -> None:
    """Declares the adapter's ingest actor: one transaction a batch, acknowledged once that has committed."""
    normalizer = resolve_provider(adapter.options.provider)

    def ingest(batch: Batch) -> None:
        transaction = current_transaction()
        # The ledger has answered: from here on it is a try, and counted as one before the bodies are touched.
        if batch.company in ("again", "alone"):
            adapter.count_tries(batch.deliveries, batch.deliveries[0].tries + 1)
        batch.begun, batch.begun_at = True, time.monotonic()
        put = bury if batch.company == "poison" else store
        outcome = put(transaction.connection, batch.route, normalizer, batch.deliveries)
        parked: list[Delivery] = []
        if adapter.options.ack == "complete":
            parked = park(transaction.connection, batch.route, batch.deliveries, outcome)

        def committed() -> None:
            batch.parked = parked
            batch.refused = outcome.refused
            batch.stored = True
            report(batch.route, outcome)
            _measure(adapter, batch, outcome)

        transaction.on_commit(committed)

    dramatiq.actor(
        actor_name=ingest_actor_name(adapter.name),
        queue_name=adapter_queue(adapter.name),
        priority=PRIORITY,
        broker=broker,
        store_then_ack=True,
        time_limit=TIME_LIMIT,
        # The consumer offers again what has no receipt. A copy by Retries would take the original's place, and a
        # team's global retry_when outranks max_retries.
        max_retries=0,
        retry_when=never,
        throws=(LedgerUnavailable, BrokerUnavailable),
    )(ingest)


def _measure(adapter: PullAdapter, batch: Batch, outcome: Stored) -> None:
    observe("switchboard_batch_deliveries", len(batch.deliveries), adapter=adapter.name)
    if outcome.new or outcome.dead_letters:
        sent_at = adapter.sent_at(batch.deliveries[0])
        took = time.monotonic() - batch.read_at if sent_at is None else max(0.0, time.time() - sent_at)
        observe("switchboard_source_to_commit_seconds", took, adapter=adapter.name)
