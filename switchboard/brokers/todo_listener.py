"""Listens for ``todo_ready`` on a connection of its own, and nudges the consumers of that queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from ..backoff import Outage
from ..errors import LedgerError
from ..ledger import Connection, Ledger, ask, heard, listen

logger = logging.getLogger(__name__)

#: Seconds of silence after which the server is asked whether it is still there: so is a half-open socket.
ASK_AFTER = 10.0

#: Seconds after which it looks whether it is to end.
HEARING = 0.5

#: How long that answer may take.
ANSWER_TIMEOUT = timedelta(seconds=5)


class TodoListener:
    """One a process: a thread that ends with ``stop``. ``nudge`` gets a queue's name, or None for all of them.

    What is missed while it does not listen is found by the consumers' own timers, and by the scan it asks for whenever
    it listens anew.
    """

    def __init__(self, ledger: Ledger, nudge: Callable[[str | None], None]) -> None:
        self._ledger = ledger
        self._nudge = nudge
        self._stopped = threading.Event()
        self._outage = Outage("listening for todo_ready", logger, {})
        self._thread = threading.Thread(target=self._run, name="switchboard-listener", daemon=True)

    def start(self) -> None:
        """Begins to listen."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the thread; it notices within a second."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                connection = self._ledger.connect(direct=True)
            except LedgerError as error:
                self._outage.failed(error)
                self._stopped.wait(self._outage.wait_seconds)
                continue
            try:
                self._listen(connection)
            except LedgerError as error:
                if not self._stopped.is_set():
                    self._outage.failed(error)
                    self._stopped.wait(self._outage.wait_seconds)
            finally:
                connection.close()

    def _listen(self, connection: Connection) -> None:
        connection.patience = ANSWER_TIMEOUT
        listen(connection)
        self._outage.over()
        # What came while nobody listened.
        self._nudge(None)
        silent = 0.0
        while not self._stopped.is_set():
            queues = heard(connection, HEARING)
            for queue in queues:
                self._nudge(queue)
            silent = 0.0 if queues else silent + HEARING
            if silent >= ASK_AFTER:
                ask(connection)
                silent = 0.0
