"""The story: publish, store, kill one worker process midway, start again, and count what came of it."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..ledger import Ledger, migrate
from .failure import DemoFailed
from .outside import BODY, GROUP, Audit, Identity, Look, Outside
from .servers import Servers
from .supervisor import Supervisor
from .traffic import LINES, Message, messages

#: Messages published a second at most, and seconds that publishing takes at least: storing overlaps with it.
PUBLISH_RATE, PUBLISH_SECONDS = 6_000, 3.0

#: Messages in one round trip at most.
CHUNK = 500

#: The share that is published before the kill: there is always something to come after it.
SHARE_BEFORE_KILL = 0.75

#: From this many messages on a run without a kill proves nothing.
KILL_MATTERS = 1_000

#: Seconds to look for a worker process that holds deliveries before any is killed.
VICTIM_SECONDS = 1.0

#: Seconds until both worker processes have to be ready, seconds without any movement after which it is given up,
#: and seconds for all of it.
READY_SECONDS, STALL_SECONDS, OVERALL_SECONDS = 60.0, 60.0, 600.0

#: Seconds between two looks, and the share of the time that looking may take.
LOOK_SECONDS, LOOK_SHARE = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is, for a person to watch; ``rate`` is todos a second over the last second."""

    messages: int
    published: int
    stored: int
    pending: int
    rate: float


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it; ``problems`` is empty when every message became exactly one todo."""

    published: int
    todos: int
    duplicates: int
    lost: int
    pending: int
    dead_letters: int
    kills: int
    #: From the first message published to the last one acknowledged, the killed worker's restart included.
    seconds: float
    #: Todos a second over all that time, and over the best second of it.
    rate: float
    peak: float
    problems: tuple[str, ...]


class Audience(Protocol):
    """Who watches."""

    def progress(self, progress: Progress) -> None:
        """Called many times a second."""

    def say(self, line: str) -> None:
        """Something happened."""


def play(servers: Servers, folder: Path, *, count: int, seed: int, audience: Audience) -> Result:
    """Publishes ``count`` messages and watches until each is stored, or until that is hopeless.

    ``servers`` have been started; the worker's log is ``folder / "worker.log"``. ``DemoFailed`` where there is
    nothing to count.
    """
    ledger = Ledger(servers.database_url)
    try:
        audience.say(f"migrated: {', '.join(migrate(ledger)) or 'nothing to do'}")
    finally:
        ledger.close()
    environment = _configure(folder, servers)
    with Supervisor(folder, environment) as supervisor, Outside(servers.redis_url, servers.database_url) as outside:
        story = _Story(supervisor, outside, audience, count, seed)
        story.begin()
        problem = story.go_on()
        audience.say("stopping the worker, and counting")
        # What it still had in hand would be stored now: counted after it has gone, no duplicate is missed.
        supervisor.stop()
        return story.end(problem)


def broker_url(servers: Servers) -> str:
    """Where Dramatiq's own queues are: beside the streams, not among them."""
    return servers.redis_url.removesuffix("/0") + "/1"


def _configure(folder: Path, servers: Servers) -> dict[str, str]:
    """Writes ``switchboard.toml``; the worker's environment."""
    tables = [
        f'[adapters.{line}]\ntype = "redis-stream"\nurl = "${{DEMO_REDIS_URL}}"\nstream = "{line}"\n'
        f'group = "{GROUP}"\nqueue = "{line}"\nbody = "{BODY}"\n'
        for line in LINES
    ]
    path = folder / "switchboard.toml"
    path.write_text("\n".join(tables), encoding="utf-8")
    # Another project's reports are no place for a worker that is killed on purpose.
    inherited = {name: value for name, value in os.environ.items() if name != "SENTRY_DSN"}
    return {
        **inherited,
        "DATABASE_URL": servers.database_url,
        "SWITCHBOARD_BROKER_URL": broker_url(servers),
        "SWITCHBOARD_CONFIG": str(path),
        "SWITCHBOARD_STATE_DIR": str(folder / "state"),
        "DEMO_REDIS_URL": servers.redis_url,
    }


class _Story:
    def __init__(self, supervisor: Supervisor, outside: Outside, audience: Audience, count: int, seed: int) -> None:
        self._supervisor = supervisor
        self._outside = outside
        self._audience = audience
        self._count = count
        self._messages: Iterator[Message] = messages(count, seed)
        self._published: list[Identity] = []
        self._began = 0.0
        self._seconds = 0.0
        self._pace = _Pace()
        self._victim_until: float | None = None

    def begin(self) -> None:
        """Starts the worker and waits until each of its processes is ready."""
        self._supervisor.start()
        deadline = time.monotonic() + READY_SECONDS
        while not self._supervisor.all_ready:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the worker was not ready within {READY_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
            self._supervisor.poll()
        pids = ", ".join(map(str, self._supervisor.ready))
        self._audience.say(f"dramatiq switchboard.actors is ready: processes {pids}")

    def go_on(self) -> str:
        """Goes on until all is stored and acknowledged; why it was given up, where it was."""
        self._began = moved = time.monotonic()
        last: tuple[object, ...] = ()
        while True:
            self._supervise()
            self._publish()
            looking = time.monotonic()
            look = self._outside.look()
            now = time.monotonic()
            self._pace.note(now, look.stored)
            self._audience.progress(
                Progress(self._count, len(self._published), look.stored, look.pending, self._pace.rate)
            )
            if self._settled(look):
                self._seconds = now - self._began
                return ""
            if last != (last := (look, len(self._published), self._supervisor.starts)):
                moved = now
            if now - moved > STALL_SECONDS or now - self._began > OVERALL_SECONDS + self._count / 250:
                self._seconds = now - self._began
                return f"given up after {self._seconds:.0f} s; nothing has moved for the last {now - moved:.0f} s"
            if look.stored >= self._count / 2 and not self._supervisor.kills:
                self._kill()
            time.sleep(max(LOOK_SECONDS, (now - looking) / LOOK_SHARE))

    def _settled(self, look: Look) -> bool:
        everything = len(self._published) == self._count and look.stored >= self._count
        return everything and not look.pending and not look.unread

    def _supervise(self) -> None:
        status = self._supervisor.poll()
        if status is not None:
            self._audience.say(f"dramatiq ended with status {status}; its supervisor starts it again")

    def _publish(self) -> None:
        rate = min(PUBLISH_RATE, self._count / PUBLISH_SECONDS)
        due = min(self._count, int((time.monotonic() - self._began) * rate) + 1)
        if not self._supervisor.kills:
            due = min(due, max(1, int(self._count * SHARE_BEFORE_KILL)))
        while len(self._published) < due:
            size = min(CHUNK, due - len(self._published))
            self._published += self._outside.publish(itertools.islice(self._messages, size))

    def _kill(self) -> None:
        """Kills a worker process that holds deliveries; after a second's search without one, any."""
        now = time.monotonic()
        self._victim_until = self._victim_until or now + VICTIM_SECONDS
        held = self._outside.holdings()
        ready = sorted(self._supervisor.ready, key=lambda pid: held[pid])
        if not ready or (not held[ready[-1]] and now < self._victim_until):
            return
        if self._supervisor.kill(ready[-1]):
            held = self._outside.holdings()
            self._audience.say(
                f"killed worker process {ready[-1]} with SIGKILL: it held {held[ready[-1]]} un-acknowledged deliveries"
            )

    def end(self, problem: str) -> Result:
        """Compares what was published with what is stored."""
        audit = self._outside.audit(self._published)
        problems = [*([problem] if problem else []), *_problems(audit)]
        if len(self._published) < self._count:
            problems.append(f"{self._count - len(self._published)} messages were never published")
        kills = self._supervisor.kills
        if not kills and self._count >= KILL_MATTERS:
            problems.append("no worker process was killed, so nothing is proved")
        return Result(
            published=len(self._published),
            todos=audit.todos,
            duplicates=audit.duplicates,
            lost=len(audit.lost),
            pending=audit.pending,
            dead_letters=audit.dead_letters,
            kills=kills,
            seconds=round(self._seconds, 1),
            rate=round(audit.todos / self._seconds),
            peak=round(self._pace.peak),
            problems=tuple(problems),
        )


class _Pace:
    """Todos a second: over the last second, and over the best one."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self.rate = 0.0
        self.peak = 0.0

    def note(self, now: float, stored: int) -> None:
        self._seen.append((now, stored))
        while len(self._seen) > 2 and self._seen[1][0] <= now - 1:
            self._seen.popleft()
        began, before = self._seen[0]
        # A shorter time than a second would make a peak out of one commit.
        self.rate = (stored - before) / max(1.0, now - began)
        self.peak = max(self.peak, self.rate)


def _problems(audit: Audit) -> Iterator[str]:
    if audit.duplicates:
        yield f"{audit.duplicates} todos are one too many for their message"
    if audit.lost:
        yield f"{len(audit.lost)} messages have no todo: {_some(audit.lost)}"
    if audit.strangers:
        yield f"{len(audit.strangers)} todos are no message's: {_some(audit.strangers)}"
    if audit.pending:
        yield f"{audit.pending} deliveries are still not acknowledged"
    if audit.dead_letters:
        yield f"{audit.dead_letters} deliveries became dead letters"


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:5]) + (" …" if len(keys) > 5 else "")
