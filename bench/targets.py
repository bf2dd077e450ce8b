"""What is to be reached, as ratios within one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Results


@dataclass(frozen=True, slots=True)
class Target:
    """``name`` over ``other``, in the same round, at least ``at_least`` times."""

    what: str
    name: str
    other: str
    at_least: float

    def ratios(self, results: Results) -> list[float]:
        """The ratio of each round; none where either was not measured."""
        return results.ratios(self.name, self.other)


_ONE = "ingest / stream, 300 B, 1 process"
_TWO = "ingest / stream, 300 B, 2 processes"

TARGETS = (
    Target("ingest, 300 B, one process, of the loop by hand", f"{_ONE} / Switchboard", f"{_ONE} / written by hand", 15),
    Target("ingest, 300 B, one process, of FastStream", f"{_ONE} / Switchboard", f"{_ONE} / FastStream", 20),
    Target(
        "ingest, 300 B, one process, of FastStream, batch", f"{_ONE} / Switchboard", f"{_ONE} / FastStream, batch", 10
    ),
    Target(
        "ingest, 300 B, two processes, of PostgreSQL by itself",
        f"{_TWO} / Switchboard",
        f"{_TWO} / PostgreSQL by itself",
        0.75,
    ),
    Target("everything delivered again, of the first delivery", "redelivery / again", "redelivery / first", 1),
    Target("1 % bad messages, of none", "redelivery / 1 % bad", "redelivery / first", 0.7),
    Target(
        "no-op todos, of Dramatiq on Redis", "todos / worked / Switchboard", "todos / worked / Dramatiq on Redis", 4
    ),
    Target("no-op todos, of procrastinate", "todos / worked / Switchboard", "todos / worked / procrastinate", 10),
    Target("no-op todos, of pgqueuer", "todos / worked / Switchboard", "todos / worked / pgqueuer", 1),
    Target(
        "ingest beside 5,000,000 rows, of an empty table",
        "growth / ingest, 5,000,000 rows",
        "growth / ingest, 0 rows",
        0.8,
    ),
    Target(
        "claims beside 5,000,000 rows, of an empty table",
        "growth / claim, 5,000,000 rows",
        "growth / claim, 0 rows",
        0.8,
    ),
    Target(
        "prune beside 5,000,000 rows, of an empty table",
        "growth / prune, 5,000,000 rows",
        "growth / prune, 0 rows",
        0.8,
    ),
    Target(
        "memory with a backlog: its first fifth, of its last",
        "memory / backlog, its first fifth",
        "memory / backlog, its last fifth",
        0.9,
    ),
)
