"""How far a contestant is, and how fast it went."""

from __future__ import annotations

import time
from collections.abc import Callable

from .measurement import BenchFailed
from .processes import Crew

#: Seconds between two looks, and after which a contestant that makes no progress is given up.
_LOOK_EVERY, _PATIENCE = 0.02, 120.0

#: A moment and how many were done by then.
Sample = tuple[float, int]


def watch(crew: Crew, done: Callable[[], int], total: int, *, every: float = _LOOK_EVERY) -> list[Sample]:
    """Looks until all are done; ``BenchFailed`` where a process ends before, or nothing moves for two minutes."""
    samples: list[Sample] = [(time.monotonic(), done())]
    moved_at = samples[0][0]
    while samples[-1][1] < total:
        time.sleep(every)
        count, now = done(), time.monotonic()
        if count != samples[-1][1]:
            moved_at = now
        samples.append((now, count))
        if not crew.alive() or now - moved_at > _PATIENCE:
            raise BenchFailed(f"{count:,} of {total:,} done, then it ended or stood still:\n{crew.said()}")
    return samples


def rate(samples: list[Sample], total: int) -> float:
    """Done a second between a tenth and nine tenths, so that neither the start nor the end counts."""
    first = next(sample for sample in samples if sample[1] >= total * 0.1)
    last = next((sample for sample in samples if sample[1] >= total * 0.9 and sample[1] > first[1]), None)
    if last is None:
        raise BenchFailed(f"all {total:,} were done between two looks: too few to measure")
    return (last[1] - first[1]) / (last[0] - first[0])
