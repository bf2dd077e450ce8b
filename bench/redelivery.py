"""Subject 2: everything delivered a second time, and one bad message in a hundred."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from . import messages
from .ingest import CONTESTANTS, OURS, reading, stored_all
from .measurement import BenchFailed, Figure, Measurement, Place
from .progress import rate, watch

_PACE = CONTESTANTS[OURS].pace


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """Both are compared with a first delivery in the same round."""
    yield Measurement("redelivery", "all of it, again", _again)
    yield Measurement("redelivery", "1 % bad", _bad)


def _again(place: Place) -> Iterator[Figure]:
    total = place.messages(_PACE)
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.body(n, 300) for n in range(total)))
    with reading(place, CONTESTANTS[OURS]) as crew, place.servers.client() as client:
        acknowledged = partial(messages.acknowledged, client)
        yield Figure("redelivery / first", rate(watch(crew, acknowledged, total), total), "/s")
        # The same process, warm both times.
        messages.deliver_again(client)
        yield Figure("redelivery / again", rate(watch(crew, acknowledged, total), total), "/s")
    stored_all(place, total, OURS)


def _bad(place: Place) -> Iterator[Figure]:
    total = place.messages(_PACE)
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.BAD if n % 100 == 50 else messages.body(n, 300) for n in range(total)))
    with reading(place, CONTESTANTS[OURS]) as crew, place.servers.client() as client:
        yield Figure(
            "redelivery / 1 % bad", rate(watch(crew, partial(messages.acknowledged, client), total), total), "/s"
        )
    bad = sum(n % 100 == 50 for n in range(total))
    found = place.servers.ask("SELECT (SELECT count(*) FROM todos), (SELECT count(*) FROM dead_letters)")
    if found != (total - bad, bad):
        raise BenchFailed(f"{total - bad:,} good and {bad:,} bad messages, but todos and dead letters: {found}")
