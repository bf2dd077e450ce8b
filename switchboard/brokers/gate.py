"""Lets a suspect be ingested with nothing beside it in the process, so that a death is its own."""

from __future__ import annotations

import threading
import time

#: Seconds for which a wish to be alone keeps others out; it is renewed by asking again.
WISH_SECONDS = 1.0


class IngestGate:
    """One a broker: any number may be inside together, or one alone. Asking never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._alone = False
        self._wishes: dict[str, float] = {}

    def enter(self, who: str, *, alone: bool) -> bool:
        """Whether ``who`` may ingest now. One refused who wants to be alone keeps newcomers out until it asks again."""
        with self._lock:
            now = time.monotonic()
            if alone:
                if self._inside:
                    self._wishes[who] = now + WISH_SECONDS
                    return False
                self._wishes.pop(who, None)
            elif self._alone or any(until > now for until in self._wishes.values()):
                return False
            self._inside += 1
            self._alone = alone
            return True

    def leave(self) -> None:
        """One that entered has ended."""
        with self._lock:
            self._inside -= 1
            self._alone = False
