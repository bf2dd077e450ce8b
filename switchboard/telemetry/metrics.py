"""What is measured, where the extra ``prometheus`` is installed; Dramatiq's Prometheus middleware serves it.

Counters and histograms are each process's own, and added up by the exposition; gauges are sampled
(``brokers.sampler``).

``prometheus_client`` is imported with the first count, which comes after a process has booted: imported earlier it
would miss Dramatiq's multiprocess mode.
"""

from __future__ import annotations

import threading
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

#: What is counted: each name, without its ``_total``, with its help and its labels.
COUNTERS = {
    "switchboard_deliveries": ("Deliveries that are committed, by what became of them.", ("adapter", "outcome")),
    "switchboard_dead_letters": ("New dead letters.", ("adapter", "reason")),
    "switchboard_claims": ("Todos claimed by workers; one that is tried again is claimed again.", ("queue",)),
    "switchboard_leases_lost": ("Todos whose lease went to another before their handler ended.", ("queue",)),
    "switchboard_lost_at_source": ("Messages that the source dropped before they were stored.", ("adapter",)),
}

#: What is observed once a committed batch, never once a message: each name with its help, its labels and its buckets.
HISTOGRAMS = {
    "switchboard_batch_deliveries": (
        "Deliveries in one committed batch.",
        ("adapter",),
        (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000),
    ),
    "switchboard_source_to_commit_seconds": (
        "From the source to the commit, of the oldest delivery of each batch that stored anything new: since the "
        "source's own time where it gives one (a stream entry's id, by the clock of Redis), else since it was read.",
        ("adapter",),
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0),
    ),
}

#: What is sampled: each name with its help and its labels.
GAUGES = {
    "switchboard_adapter_unread": (
        "Messages at the source that nobody has read; no sample where it does not say.", ("adapter",)),
    "switchboard_adapter_pending": ("Messages read and not acknowledged at the source.", ("adapter",)),
    "switchboard_adapter_enabled": ("1 where the pull adapter may consume, 0 where it is switched off.", ("adapter",)),
    "switchboard_adapter_consumers": (
        "Worker processes whose consumer of the adapter said within half a minute that it is there.", ("adapter",)),
    "switchboard_adapter_last_poll_timestamp_seconds": (
        "When the source last answered a read of any consumer.", ("adapter",)),
    "switchboard_todos": (
        "Todos by state. Those that have ended are counted in the table, so the larger it is the less often: counting "
        "takes a fiftieth of one connection's time at most, and is done every five minutes at least.",
        ("queue", "state"),
    ),
    "switchboard_oldest_pending_age_seconds": (
        "How long the oldest pending todo has been waiting; 0 where there is none.", ("queue",)),
    "switchboard_dead_letters_unresolved": (
        "Dead letters that are neither replayed nor discarded.", ("adapter", "reason")),
    "switchboard_upkeep_last_success_timestamp_seconds": ("When the job last succeeded.", ("upkeep",)),
    "switchboard_upkeep_last_duration_seconds": ("How long the job took when it last succeeded.", ("upkeep",)),
    "switchboard_sampled_timestamp_seconds": (
        "When what the ledger says was last sampled: where that is long ago, the process that asks for all is stopped.",
        (),
    ),
    "switchboard_pool_connections": ("Connections to the ledger in the pools of all worker processes.", ()),
    "switchboard_pool_connections_in_use": ("Those of them that are in use.", ()),
    "switchboard_pool_connections_max": ("How many there can be.", ()),
    "switchboard_pool_requests_waiting": ("Threads that wait for a connection.", ()),
}  # fmt: skip

#: The values of the labels whose values are known beforehand.
KNOWN_VALUES = {
    "outcome": ("new", "duplicate", "dead_letter"),
    "reason": ("invalid", "poison", "id_conflict", "too_large"),
}

_making = threading.Lock()


def expose(**of: str) -> None:
    """Shows every counter of an adapter (``adapter="deploys"``) or of a todo queue (``queue="work"``), at 0 until it is
    counted: a series that appears with its first count has not increased, and no alert would hear of it.
    """
    for name, (_, labels) in COUNTERS.items():
        if not of.keys() <= set(labels):
            continue
        values = [(of[label],) if label in of else KNOWN_VALUES[label] for label in labels]
        for chosen in product(*values):
            with _making:
                _child(name, tuple(zip(labels, chosen, strict=True)))


def count(name: str, amount: int = 1, **labels: str) -> None:
    """Adds to one of ``COUNTERS``; does nothing where ``prometheus_client`` is missing."""
    if amount:
        with _making:
            counter = _child(name, tuple(labels.items()))
        if counter is not None:
            counter.inc(amount)


def observe(name: str, value: float, **labels: str) -> None:
    """Adds an observation to one of ``HISTOGRAMS``; does nothing where ``prometheus_client`` is missing."""
    with _making:
        histogram = _child(name, tuple(labels.items()))
    if histogram is not None:
        histogram.observe(value)


@cache
def _child(name: str, labels: tuple[tuple[str, str], ...]) -> Any:
    """The one ``Counter`` or ``Histogram`` with these labels; ``Any``, as its callers know which of the two it is."""
    parent = _parent(name)
    return None if parent is None else parent.labels(**dict(labels))


@cache
def _parent(name: str) -> Counter | Histogram | None:
    try:
        from prometheus_client import Counter, Histogram
    except ImportError:
        return None
    if name in COUNTERS:
        return Counter(name, *COUNTERS[name])
    text, labels, buckets = HISTOGRAMS[name]
    return Histogram(name, text, labels, buckets=buckets)
