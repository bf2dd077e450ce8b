"""Subject 3: no-op todos, against Dramatiq's Redis broker, procrastinate and pgqueuer."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from .measurement import BenchFailed, Figure, Measurement, Place
from .processes import ROOT, Crew, dramatiq_worker, python_module, running
from .progress import watch
from .ticks import Ticks

#: Todos made one at a time on an idle queue: a quick run, and a full one.
_IDLE_QUICK, _IDLE = 40, 400


@dataclass(frozen=True, slots=True)
class Contestant:
    """``pace``: todos a second, about; it only decides how many there are."""

    name: str
    module: str
    pace: float
    singles: float
    on_dramatiq: bool = False

    def worker(self) -> list[str]:
        """The command of its one worker process."""
        return (
            dramatiq_worker(f"bench.{self.module}")
            if self.on_dramatiq
            else python_module("contestant", self.module, "work")
        )

    def asked(self, place: Place, *arguments: str) -> Any:
        """What its own process answers; JSON may be anything."""
        done = subprocess.run(
            python_module("contestant", self.module, *arguments),
            env=os.environ | _environment(place) | {"PYTHONPATH": str(ROOT)},
            cwd=place.folder,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchFailed(
                f"{self.name}: {' '.join(arguments)}: status {done.returncode}:\n{done.stderr.decode()[-2000:]}"
            )
        return json.loads(done.stdout.splitlines()[-1])


CONTESTANTS = (
    Contestant("Switchboard", "todos_switchboard", 15_000, 800, on_dramatiq=True),
    Contestant("Dramatiq on Redis", "todos_dramatiq", 1_800, 2_500, on_dramatiq=True),
    Contestant("procrastinate", "todos_procrastinate", 350, 500),
    Contestant("pgqueuer", "todos_pgqueuer", 3_000, 800),
)


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """Each contestant: worked off, made, and begun on an idle queue."""
    for contestant in CONTESTANTS:
        yield Measurement("todos", f"worked by {contestant.name}", partial(_worked, contestant=contestant))
    for contestant in CONTESTANTS:
        yield Measurement("todos", f"idle queue of {contestant.name}", partial(_idle, contestant=contestant))


def _worked(place: Place, *, contestant: Contestant) -> Iterator[Figure]:
    place.servers.begin_anew(migrated=False)
    contestant.asked(place, "prepare")
    singles = place.messages(contestant.singles / 2, least=100)
    yield Figure(
        f"todos / made singly / {contestant.name}", singles / contestant.asked(place, "single", str(singles)), "/s"
    )
    total = place.messages(contestant.pace)
    yield Figure(f"todos / made in bulk / {contestant.name}", total / contestant.asked(place, "many", str(total)), "/s")
    total += singles + 1
    place.servers.checkpoint()
    with _worker(place, contestant, every=max(1, total // 400)) as (crew, ticks):
        # The last few may not make a tick.
        watch(crew, ticks.count, int(total * 0.95), every=0.05)
        _all_ended(place, contestant, crew)
        yield Figure(f"todos / worked / {contestant.name}", ticks.rate(total), "/s")


def _all_ended(place: Place, contestant: Contestant, crew: Crew) -> None:
    deadline = time.monotonic() + 60
    while left := contestant.asked(place, "left"):
        if not crew.alive() or time.monotonic() > deadline:
            raise BenchFailed(f"{contestant.name}: {left:,} todos have not ended:\n{crew.said()}")
        time.sleep(0.2)


def _idle(place: Place, *, contestant: Contestant) -> Iterator[Figure]:
    place.servers.begin_anew(migrated=False)
    contestant.asked(place, "prepare")
    count = _IDLE_QUICK if place.scale.quick else _IDLE
    with _worker(place, contestant, every=1) as (crew, ticks):
        # The worker's start is nobody's latency.
        contestant.asked(place, "many", "5")
        watch(crew, ticks.count, 5)
        time.sleep(1)
        made = contestant.asked(place, "idle", str(count))
        watch(crew, ticks.count, count + 5)
        began = [at for _, at in ticks.read()[5:]]
    waits = sorted((at - since) / 1e6 for since, at in zip(made, began, strict=True))
    yield Figure(f"todos / start, median / {contestant.name}", statistics.median(waits), "ms")
    yield Figure(f"todos / start, 99th percentile / {contestant.name}", waits[int(len(waits) * 0.99)], "ms")


@contextmanager
def _worker(place: Place, contestant: Contestant, *, every: int) -> Iterator[tuple[Crew, Ticks]]:
    ticks = Ticks(place.folder)
    environment = _environment(place) | ticks.environment(every)
    with running([contestant.worker()], folder=place.folder, environment=environment) as crew:
        yield crew, ticks


def _environment(place: Place) -> dict[str, str]:
    return {"DATABASE_URL": place.servers.database_url, "BENCH_REDIS_URL": place.servers.redis_url}
