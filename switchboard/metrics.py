"""Counters, where the extra ``prometheus`` is installed; Dramatiq's Prometheus middleware serves them.

``prometheus_client`` is imported with the first count, which comes after a process has booted: imported earlier it
would miss Dramatiq's multiprocess mode.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Counter

#: What is counted: each name with its help and its labels.
COUNTERS = {
    "switchboard_deliveries": ("Deliveries that are committed, by what became of them.", ("adapter", "outcome")),
    "switchboard_dead_letters": ("New dead letters.", ("adapter", "reason")),
    "switchboard_leases_lost": ("Todos whose lease went to another before their handler ended.", ("queue",)),
    "switchboard_lost_at_source": ("Messages that the source dropped before they were stored.", ("adapter",)),
}

_making = threading.Lock()


def count(name: str, amount: int = 1, **labels: str) -> None:
    """Adds to one of ``COUNTERS``; does nothing where ``prometheus_client`` is missing."""
    if amount:
        with _making:
            counter = _counter(name)
        if counter is not None:
            counter.labels(**labels).inc(amount)


@cache
def _counter(name: str) -> Counter | None:
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    text, labels = COUNTERS[name]
    return Counter(name, text, labels)
