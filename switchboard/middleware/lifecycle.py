"""Starts and ends a worker's dealings with the ledger and the sources."""

from __future__ import annotations

import dramatiq
from dramatiq.worker import Worker

from ..brokers import AdapterQueues, ingest_actor_name
from ..brokers.in_force import refuse_another
from ..errors import ConfigError, SwitchboardError
from ..ledger import migrate


class Lifecycle(dramatiq.Middleware):
    """Checks before a worker starts that it can do its work, and lets it end without losing or repeating any.

    Before the boot: the broker is the right one, the ledger answers, its migrations are applied, each adapter is
    registered. What is wrong ends the process with one line and status 1. On shutdown reading ends first.

    It has to be the broker's first middleware: an exception later in the boot would leave threads that keep the
    process alive.
    """

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        if not isinstance(broker, AdapterQueues):
            return
        try:
            _start(broker, worker)
        except SwitchboardError as error:
            # Any other exception would be logged and the worker run on (dramatiq.Broker.emit_before).
            raise SystemExit(str(error)) from None

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        if isinstance(broker, AdapterQueues) and broker.in_use:
            broker.stop_reading()
            broker.ledger.stop()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        if isinstance(broker, AdapterQueues) and broker.in_use:
            broker.ledger.close()


def _start(broker: AdapterQueues, worker: Worker) -> None:
    refuse_another(broker)
    if not broker.in_use:
        return
    for name in broker.adapters:
        if ingest_actor_name(name) not in broker.actors:
            raise ConfigError(
                f"adapter {name!r} has nobody to store what it reads: add switchboard.actors to the worker's "
                f"modules, `dramatiq myapp.tasks switchboard.actors`"
            )
    ledger = broker.ledger
    # One a worker thread, and one a consumer that looks after its adapter.
    ledger.max_size = worker.worker_threads + len(broker.adapters) + 1
    ledger.open()
    migrate(ledger)
    broker.register_adapters()
