"""What a measurement is, and where it takes place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .servers import Servers


class BenchFailed(RuntimeError):
    """A contestant did not do its work: its figure would mean nothing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. ``seconds``: how long each rate is, about; ``rows``: table sizes that growth is seen at."""

    quick: bool
    rounds: int
    seconds: float
    rows: tuple[int, ...]
    backlog: int
    unacknowledged: int
    #: Minutes of steady traffic in which a worker's memory is watched; 0: not watched.
    steady_minutes: float


#: Two minutes in all, on an idle machine of two cores.
QUICK = Scale(True, rounds=1, seconds=0.4, rows=(0, 30_000), backlog=0, unacknowledged=5_000, steady_minutes=0)
FULL = Scale(
    False,
    rounds=3,
    seconds=6.0,
    rows=(0, 1_000_000, 5_000_000),
    backlog=1_000_000,
    unacknowledged=100_000,
    steady_minutes=10,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is measured: the servers of this run, a folder for files, and how much."""

    servers: Servers
    folder: Path
    scale: Scale

    def messages(self, pace: float, *, least: int = 500) -> int:
        """How many take about ``scale.seconds`` at ``pace`` a second."""
        return max(least, int(pace * self.scale.seconds))


@dataclass(frozen=True, slots=True)
class Figure:
    """One value: ``name`` is its path, "ingest / stream, 300 B, 1 process / switchboard"."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Something that is done once a round, or, where it takes minutes, once a run."""

    subject: str
    name: str
    take: Callable[[Place], Iterable[Figure]]
    once: bool = False
