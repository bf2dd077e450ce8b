"""Handlers that do nothing but say that they ran: every contestant's are these."""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path

_TICK = struct.Struct("!QQ")

_FILE, _EVERY = "BENCH_TICKS", "BENCH_TICK_EVERY"


class Ticker:
    """In the worker: counts calls, and appends a record to a file for every so many of them. It never waits."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self._every = int(os.environ.get(_EVERY, "100"))
        self._file = os.open(os.environ.get(_FILE, os.devnull), os.O_WRONLY | os.O_APPEND)

    def tick(self) -> None:
        """A handler began."""
        number = next(self._count)
        if number % self._every == 0:
            os.write(self._file, _TICK.pack(number, time.monotonic_ns()))


class Ticks:
    """In the benchmark: reads what the handlers of one worker process have said."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ticks"
        self._path.write_bytes(b"")

    def environment(self, every: int) -> dict[str, str]:
        """What the worker needs to know; ``every``: calls a tick."""
        return {_FILE: str(self._path), _EVERY: str(every)}

    def read(self) -> list[tuple[int, int]]:
        """All of them: how many calls by then, and the monotonic nanosecond."""
        said = self._path.read_bytes()
        return sorted((number, at) for number, at in _TICK.iter_unpack(said[: len(said) // _TICK.size * _TICK.size]))

    def count(self) -> int:
        """Calls by the last tick."""
        came = self.read()
        return came[-1][0] if came else 0

    def rate(self, total: int) -> float:
        """Calls a second between a tenth and nine tenths of ``total``, by the handlers' own clock."""
        within = [(number, at) for number, at in self.read() if total * 0.1 <= number <= total * 0.9]
        (first, began), (last, ended) = within[0], within[-1]
        return (last - first) / (ended - began) * 1e9
