"""Subject 5: CPU seconds and bytes on disk a thousand messages, and round trips a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from . import messages
from .ingest import BY_HAND, CONTESTANTS, FASTSTREAM_BATCH, OURS, Contestant, reading, stored_all
from .measurement import Figure, Measurement, Place
from .processes import Usage
from .progress import watch
from .relay import Relay

_BATCH = 500


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """What each spends; a quick run asks Switchboard alone."""
    for name in (OURS,) if quick else (OURS, BY_HAND, FASTSTREAM_BATCH):
        yield Measurement("cost", f"CPU and disk of {name}", partial(_spent, contestant=CONTESTANTS[name]))
    yield Measurement("cost", "round trips", _round_trips, once=True)


def _spent(place: Place, *, contestant: Contestant) -> Iterator[Figure]:
    total = place.messages(contestant.pace, least=2000)
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.body(n, 300) for n in range(total)))
    spent: dict[str, Usage] = {}
    with reading(place, contestant) as crew, place.servers.client() as client:
        # What starting costs is nobody's cost a message.
        acknowledged = partial(messages.acknowledged, client)
        watch(crew, lambda: min(1, acknowledged()), 1)
        first = acknowledged()
        before = _usage(place, crew.usage())
        watch(crew, acknowledged, total)
        # Dirty pages are part of the bill.
        place.servers.checkpoint()
        after = _usage(place, crew.usage())
        spent = {who: after[who] - before[who] for who in after}
    stored_all(place, total, contestant.name)
    thousands = (total - first) / 1000
    for who, usage in spent.items():
        yield Figure(f"cost / CPU, {who} / {contestant.name}", usage.cpu_seconds / thousands * 1000, "ms/1000")
    written = sum(usage.written_bytes for usage in spent.values())
    yield Figure(f"cost / written to disk / {contestant.name}", written / thousands / 1000, "kB/1000")


def _usage(place: Place, worker: Usage) -> dict[str, Usage]:
    return {
        "worker": worker,
        "PostgreSQL": Usage.of(place.servers.postgres_pid),
        "Valkey": Usage.of(place.servers.valkey_pid),
    }


def _round_trips(place: Place) -> Iterator[Figure]:
    total = 20 * _BATCH
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.body(n, 300) for n in range(total)))
    database, source = urlsplit(place.servers.database_tcp_url), urlsplit(place.servers.redis_url)
    with Relay(database.port or 0) as postgres, Relay(source.port or 0) as valkey:
        through = replace(
            place.servers,
            database_url=database._replace(netloc=f"postgres@127.0.0.1:{postgres.port}").geturl(),
            redis_url=source._replace(netloc=f"127.0.0.1:{valkey.port}").geturl(),
        )
        counted: list[tuple[int, int, int]] = []
        with reading(replace(place, servers=through), CONTESTANTS[OURS]) as crew, place.servers.client() as client:

            def done() -> int:
                counted.append((messages.acknowledged(client), postgres.round_trips, valkey.round_trips))
                return counted[-1][0]

            watch(crew, done, total)
    stored_all(place, total, OURS)
    first = next(one for one in counted if one[0] >= 2 * _BATCH)
    batches = (counted[-1][0] - first[0]) / _BATCH
    yield Figure("cost / round trips a batch, PostgreSQL", (counted[-1][1] - first[1]) / batches, "")
    yield Figure("cost / round trips a batch, Valkey", (counted[-1][2] - first[2]) / batches, "")
