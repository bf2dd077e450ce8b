"""Subject 1: from a source to events and todos, against a loop by hand, FastStream, and PostgreSQL's own limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from . import messages
from .limit import limit
from .measurement import BenchFailed, Figure, Measurement, Place
from .processes import Crew, dramatiq_worker, python_module, running
from .progress import rate, watch

OURS, BY_HAND, LIMIT = "Switchboard", "written by hand", "PostgreSQL by itself"
FASTSTREAM, FASTSTREAM_WORKERS, FASTSTREAM_BATCH = "FastStream", "FastStream, 10 workers", "FastStream, batch"

_ADAPTER = """
[adapters.{name}]
type = "redis-{kind}"
url = "${{BENCH_REDIS_URL}}"
{kind} = "{name}"
queue = "bench"
"""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who reads the messages. ``pace``: messages a second, about; it only decides how many are sent."""

    name: str
    pace: float
    commands: Callable[[str, int], Sequence[Sequence[str]]]


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(OURS, 30_000, lambda _kind, n: [dramatiq_worker("switchboard.actors", processes=n)]),
        Contestant(BY_HAND, 2_000, lambda kind, n: [python_module("handwritten", kind)] * n),
        Contestant(FASTSTREAM, 1_000, lambda _kind, n: [python_module("faststream_rival", "single")] * n),
        Contestant(FASTSTREAM_WORKERS, 1_500, lambda _kind, n: [python_module("faststream_rival", "workers")] * n),
        Contestant(FASTSTREAM_BATCH, 8_000, lambda _kind, n: [python_module("faststream_rival", "batch")] * n),
    )
}


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """Each contestant in each setting; a quick run leaves out what the table of targets does not need."""
    for size, kind, processes in _settings(quick=quick):
        setting = f"{kind}, {size}, {processes} process{'es' * (processes > 1)}"
        for contestant in CONTESTANTS.values():
            if kind == "list" and contestant.name not in (OURS, BY_HAND):
                continue
            if processes > 1 and contestant.name in (FASTSTREAM, FASTSTREAM_WORKERS):
                continue
            if quick and (setting != "stream, 300 B, 1 process") and contestant.name not in (OURS, BY_HAND):
                continue
            if quick and (processes > 1 or contestant.name == FASTSTREAM_WORKERS) and contestant.name != OURS:
                continue
            take = partial(_take, setting=setting, size=size, kind=kind, processes=processes, contestant=contestant)
            yield Measurement("ingest", f"{setting}: {contestant.name}", take)


def _settings(*, quick: bool) -> Iterator[tuple[str, str, int]]:
    if quick:
        yield from [("300 B", "stream", 1), ("300 B", "stream", 2), ("10 KB", "stream", 1), ("300 B", "list", 1)]
        return
    for size in messages.SIZES:
        for kind in ("stream", "list"):
            for processes in (1, 2):
                yield size, kind, processes


def _take(
    place: Place, *, setting: str, size: str, kind: str, processes: int, contestant: Contestant
) -> Iterator[Figure]:
    pace = contestant.pace if size == "300 B" else contestant.pace / (4 if contestant.name == OURS else 1.5)
    total = place.messages(pace * processes**0.5)
    place.servers.begin_anew()
    messages.publish(place.servers, (messages.body(n, messages.SIZES[size]) for n in range(total)), kind=kind)
    with reading(place, contestant, kind=kind, processes=processes) as crew, place.servers.client() as client:
        count = messages.acknowledged if kind == "stream" else partial(messages.taken, total=total)
        yield Figure(
            f"ingest / {setting} / {contestant.name}", rate(watch(crew, partial(count, client), total), total), "/s"
        )
    stored_all(place, total, contestant.name)
    if contestant.name == OURS and kind == "stream":
        yield Figure(f"ingest / {setting} / {LIMIT}", limit(place.servers), "/s")


@contextmanager
def reading(
    place: Place,
    contestant: Contestant,
    *,
    kind: str = "stream",
    processes: int = 1,
    adapters: Sequence[str] = (messages.NAME,),
) -> Iterator[Crew]:
    """The contestant's processes, while they read."""
    config = "".join(_ADAPTER.format(name=name, kind=kind) for name in adapters)
    if kind == "stream":
        config = config.replace("queue =", f'body = "{messages.FIELD}"\nqueue =')
    (place.folder / "switchboard.toml").write_text(config, encoding="utf-8")
    environment = {
        "DATABASE_URL": place.servers.database_url,
        "SWITCHBOARD_BROKER_URL": place.servers.redis_url,
        "BENCH_REDIS_URL": place.servers.redis_url,
    }
    with running(contestant.commands(kind, processes), folder=place.folder, environment=environment) as crew:
        yield crew


def stored_all(place: Place, total: int, name: str) -> None:
    """Each message has one event and one todo; ``BenchFailed`` where some have not."""
    found = place.servers.ask(
        "SELECT (SELECT count(*) FROM events), (SELECT count(DISTINCT event_id) FROM todos),"
        " (SELECT count(DISTINCT idempotency_key) FROM todos)"
    )
    if set(found) != {total}:
        raise BenchFailed(f"{name}: {total:,} messages, but events, todos, keys: {found}")
