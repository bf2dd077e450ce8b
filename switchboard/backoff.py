"""A side that is away: when to try it again, and one log line when it goes and one when it is back."""

from __future__ import annotations

import logging
import threading
import time

from dramatiq.common import compute_backoff

from .errors import LedgerError
from .redact import safe_text

#: Milliseconds: the first wait is about this long, later ones double.
FIRST_WAIT = 100

#: Milliseconds: no wait is longer, so that what comes back is noticed.
LONGEST_WAIT = 5_000


class Outage:
    """The state of one server as its user sees it: there, or away since some time. Any thread may tell.

    ``who`` opens the log lines ("PostgreSQL"); ``fields`` are their structured ones. Without a ``reason`` among them it
    is ``ledger_unavailable`` or ``source_unavailable``, by the error.
    """

    def __init__(self, who: str, logger: logging.Logger, fields: dict[str, object]) -> None:
        self._who = who
        self._logger = logger
        self._fields = fields
        self._lock = threading.Lock()
        self._since: float | None = None
        self._attempts = 0
        self._next_try = 0.0
        self._last: tuple[float, str] | None = None

    @property
    def away(self) -> bool:
        """Whether the last thing heard was a failure."""
        return self._since is not None

    @property
    def wait_seconds(self) -> float:
        """How long until the next try is due; 0 where it is."""
        return max(0.0, self._next_try - time.monotonic()) if self.away else 0.0

    @property
    def last_error(self) -> tuple[float, str] | None:
        """The monotonic second of the last failure and its text, safe to show; it stays when the server is back."""
        return self._last

    def failed(self, error: BaseException) -> None:
        """Notes a failure and sets the next try, jittered and exponential; logs only the first."""
        with self._lock:
            now = time.monotonic()
            self._last = now, safe_text(error)
            if self._since is None:
                self._since = now
                reason = "ledger_unavailable" if isinstance(error, LedgerError) else "source_unavailable"
                # Its text alone: a record that is kept would keep the frames it was raised in, and their sockets.
                self._logger.error(
                    "%s is unavailable: %s; trying again with backoff",
                    self._who,
                    str(error),
                    extra={"reason": reason} | self._fields,
                )
            self._attempts, wait = compute_backoff(self._attempts, factor=FIRST_WAIT, max_backoff=LONGEST_WAIT)
            self._next_try = now + wait / 1000

    def over(self) -> None:
        """Notes an answer; logs it where it ends an outage."""
        with self._lock:
            if self._since is not None:
                gone = time.monotonic() - self._since
                self._logger.warning("%s is back after %.1f s", self._who, gone, extra=self._fields)
            self._since, self._attempts, self._next_try = None, 0, 0.0
