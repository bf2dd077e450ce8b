"""Starts and ends a worker's dealings with the ledger and the sources."""

from __future__ import annotations

import logging
from typing import Protocol

import dramatiq
from dramatiq.worker import Worker

from ..errors import SwitchboardError
from ..redact import safe_text

logger = logging.getLogger(__name__)


class Served(Protocol):
    """What has to be ready before a worker starts, and to end with it: the broker's part of Switchboard."""

    def start_serving(self, worker_threads: int) -> None:
        """Raises ``SwitchboardError`` where the worker could not do its work."""

    def stop_reading(self) -> None:
        """Reads nothing more; what is being stored goes on."""

    def end_serving(self) -> None:
        """Ends every thread and connection."""


class Lifecycle(dramatiq.Middleware):
    """Checks before a worker starts that it can do its work, and lets it end without losing or repeating any.

    What is wrong ends the process with one line and status 1. On shutdown, reading ends first. It has to be the
    broker's first middleware: an exception later in the boot would leave threads that keep the process alive.
    """

    def __init__(self, served: Served) -> None:
        self._served = served

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        try:
            self._served.start_serving(worker.worker_threads)
        except SwitchboardError as error:
            raise SystemExit(str(error)) from None
        except Exception as error:
            # It would be logged, and the worker run on without reading anything (dramatiq.Broker.emit_before).
            logger.debug("the start failed", exc_info=True)
            raise SystemExit(f"this worker cannot start: {' '.join(safe_text(error).split())}") from None

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        self._served.stop_reading()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        self._served.end_serving()
