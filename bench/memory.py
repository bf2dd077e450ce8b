"""Subject 4, too: a worker's memory, with a backlog and over minutes of steady traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator

from . import messages
from .ingest import CONTESTANTS, OURS, reading, stored_all
from .measurement import BenchFailed, Figure, Measurement, Place

#: Messages a second of steady traffic.
_STEADY = 1_000

_MEGABYTE = 1_000_000


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """Once a run: both take minutes, and a quick run has neither."""
    if not quick:
        yield Measurement("memory", "with a backlog", _backlog, once=True)
        yield Measurement("memory", "steady traffic", _steady, once=True)


def _backlog(place: Place) -> Iterator[Figure]:
    total = place.scale.backlog
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.body(n, 300) for n in range(total)))
    seen: list[tuple[int, int]] = []
    with reading(place, CONTESTANTS[OURS]) as crew, place.servers.client() as client:
        while not seen or seen[-1][0] < total:
            seen.append((messages.acknowledged(client), crew.usage().resident_bytes))
            if not crew.alive():
                raise BenchFailed(f"the worker ended:\n{crew.said()}")
            time.sleep(0.1)
    stored_all(place, total, OURS)
    early = max(resident for done, resident in seen if done <= total * 0.2)
    late = max(resident for done, resident in seen if done >= total * 0.8)
    yield Figure("memory / backlog, its first fifth", early / _MEGABYTE, "MB")
    yield Figure("memory / backlog, its last fifth", late / _MEGABYTE, "MB")


def _steady(place: Place) -> Iterator[Figure]:
    place.servers.begin_anew()
    messages.publish(place.servers, [])
    sent, began = 0, time.monotonic()
    minutes: dict[int, int] = {}
    with reading(place, CONTESTANTS[OURS]) as crew, place.servers.client() as client:
        while (now := time.monotonic() - began) < place.scale.steady_minutes * 60:
            due = int(now * _STEADY) - sent
            messages.publish(place.servers, (messages.body(n, 300) for n in range(sent, sent + due)))
            sent += due
            minute = int(now // 60)
            minutes[minute] = max(minutes.get(minute, 0), crew.usage().resident_bytes)
            time.sleep(0.2)
        while messages.acknowledged(client) < sent:
            if not crew.alive():
                raise BenchFailed(f"the worker ended:\n{crew.said()}")
            time.sleep(0.1)
    stored_all(place, sent, OURS)
    for minute in (1, max(minutes)):
        yield Figure(f"memory / steady, minute {minute + 1}", minutes[minute] / _MEGABYTE, "MB")
