"""One line from a Redis stream to PostgreSQL, run by real workers and looked at from outside only."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis
from waiting import eventually
from worker import Worker

#: Seconds a supervisor gives `dramatiq` to end by itself once one of its processes was killed.
SUPERVISOR_PATIENCE = 15

#: Milliseconds an entry that was given back shows as its idle time, at least: any consumer may claim it.
GIVEN_BACK = 3_600_000

#: What an outage of ten seconds may print, and the share of one processor it may use.
FEW_LINES, LITTLE_CPU = 15, 0.3

# Slow enough that a kill finds work under way; the count is not transactional, so it sees every attempt.
_SLOW_STORE = """
CREATE OR REPLACE FUNCTION slow_store() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$;
CREATE TRIGGER slow_store BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION slow_store();
"""


@dataclass
class Line:
    """An adapter `name` that reads the stream `name` into the todo queue `name`.

    The two addresses are those that are looked at from here; `env` is what the workers get instead, where a proxy
    or a password stands between. `options` go into the adapter's table as they are."""

    folder: Path
    database_url: str
    source_url: str
    name: str = "line"
    options: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    #: The idempotency keys of everything that was published.
    published: list[str] = field(default_factory=list)

    def worker(
        self,
        *,
        processes: int = 1,
        threads: int = 4,
        modules: Sequence[str] = ("switchboard.actors",),
        host: str = "",
        env: Mapping[str, str] = {},
    ) -> Worker:
        """A worker that is not started yet; on a host of that name, where one is given (needs `unshare`)."""
        table = {"type": "redis-stream", "url": "${LINE_URL}", "stream": self.name, "queue": self.name, **self.options}
        lines = [f"[adapters.{self.name}]", *(f'{key} = "{value}"' for key, value in table.items())]
        text = "\n".join(line.replace('"', "") if line.startswith("batch =") else line for line in lines)
        (self.folder / "switchboard.toml").write_text(text + "\n")
        environment = {
            "DATABASE_URL": self.database_url,
            "SWITCHBOARD_BROKER_URL": self.source_url,
            "LINE_URL": self.source_url,
            "SWITCHBOARD_CONFIG": "",
            **self.env,
            **env,
        }
        make = on_host(host) if host else Worker
        return make(modules, cwd=self.folder, env=environment, processes=processes, threads=threads)

    @contextmanager
    def running(self, **how: Any) -> Iterator[Worker]:
        """A worker that has said it is ready."""
        with self.worker(**how) as worker:
            worker.wait_ready()
            yield worker

    # The source

    @contextmanager
    def source(self) -> Iterator[Any]:
        """A client of the source's own server."""
        with redis.Redis.from_url(self.source_url) as client:
            yield client

    def publish(self, count: int) -> None:
        with self.source() as source, source.pipeline(transaction=False) as pipeline:
            for number in range(count):
                pipeline.xadd(self.name, {"event": "deploy", "number": number, "service": "checkout"})
            ids = pipeline.execute()
        self.published += [f"redis:{self.name}:{entry_id.decode()}" for entry_id in ids]

    def group(self) -> dict[str, Any]:
        """The consumer group as XINFO shows it; empty where it is missing."""
        with self.source() as source:
            try:
                groups = source.xinfo_groups(self.name)
            except redis.ResponseError:
                return {}
        return next((group for group in groups if group["name"] == b"switchboard"), {})

    def pending(self) -> list[dict[str, Any]]:
        """Each entry that was delivered and not acknowledged: message_id, consumer, time_since_delivered …"""
        with self.source() as source:
            try:
                return list(source.xpending_range(self.name, "switchboard", "-", "+", 100_000))
            except redis.ResponseError:
                return []

    # The ledger

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        options = "-c statement_timeout=10s"
        with psycopg.connect(self.database_url, autocommit=True, options=options) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *values: object) -> Any:
        return self.rows(query, *values)[0][0]

    def stored(self) -> int:
        return int(self.value("SELECT count(*) FROM todos WHERE queue = %s", self.name))

    def attempts(self) -> int:
        """How many rows were ever tried to be inserted as events: one that is rolled back has taken a number too."""
        return int(self.value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq"))

    def slow_down(self, seconds: float = 0.001) -> None:
        """From now on storing one event takes this long."""
        self.rows(_SLOW_STORE.format(seconds=seconds))

    @contextmanager
    def locked(self, table: str = "events") -> Iterator[None]:
        """Nobody else can read or write that table meanwhile."""
        connection = psycopg.connect(self.database_url)
        try:
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            yield
        finally:
            with suppress(psycopg.Error):  # its server may have been killed
                connection.rollback()
            connection.close()

    def wait_blocked(self) -> None:
        """Returns when a worker's insert waits for `locked`."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT%'"
        eventually(lambda: self.value(query), within=20, every=0.02, what="an insert waits for the lock")

    def wait_stored(self, count: int) -> None:
        """Returns when there are so many todos."""
        eventually(lambda: self.stored() >= count, within=20, every=0.01, what=f"{count} are stored")

    # What must hold

    def state(self) -> str:
        """In one line, for people."""
        return f"published {len(self.published)}, stored {self.stored()}, group {self.group()}"

    def settle(self, worker: Worker | None = None, *, within: float = 25) -> None:
        """Returns when everything published is stored and nothing is pending; it must be stored exactly once."""

        def done() -> bool:
            group = self.group()
            quiet = bool(group) and not group["pending"] and not group["lag"]
            return quiet and self.stored() >= len(self.published)

        try:
            eventually(done, within=within, every=0.1, what="everything published is stored and acknowledged")
        except AssertionError as late:
            output = f"\n{worker.output[-6000:]}" if worker else ""
            raise AssertionError(f"{late}\n{self.state()}{output}") from None
        self.assert_exactly_once()

    def assert_exactly_once(self) -> None:
        todos = [key for (key,) in self.rows("SELECT idempotency_key FROM todos WHERE queue = %s", self.name)]
        assert sorted(todos) == sorted(self.published)
        events = [key for (key,) in self.rows("SELECT external_id FROM events WHERE source = %s", self.name)]
        assert sorted(events) == sorted(self.published)
        assert self.rows("SELECT reason, detail FROM dead_letters") == []
        assert self.pending() == []


def on_host(name: str) -> Callable[..., Worker]:
    """A worker class whose processes see that host name."""

    class OnHost(Worker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            elsewhere = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
            self._command = [*elsewhere, *self._command]

    return OnHost


def other_hosts_can_be_simulated() -> bool:
    try:
        subprocess.run(["unshare", "--uts", "hostname", "elsewhere"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def group_of(worker: Worker) -> list[int]:
    """The living processes of the command's group, itself included."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == worker.parent.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def restart(worker: Worker) -> None:
    """As a supervisor does once a process of it was killed: the rest has to end, then it is started again."""
    try:
        status = worker.parent.wait(SUPERVISOR_PATIENCE)
    except subprocess.TimeoutExpired:
        pass
    else:
        assert status != 0
    worker.kill_all()
    worker.start()


def remains(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Holds that it is true for so long: what must not happen has no condition to wait for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), what
        time.sleep(0.1)


def said(worker: Worker, text: str, *, within: float = 15) -> None:
    """Returns when the worker has logged that text."""
    try:
        eventually(lambda: text in worker.output, within=within, what=f"it says {text!r}")
    except AssertionError as late:
        raise AssertionError(f"{late}\n{worker.output}") from None


@contextmanager
def calm_outage(worker: Worker, *, seconds: float = 10) -> Iterator[None]:
    """What is broken inside stays so until `seconds` have passed; the worker must take it quietly and live on."""
    pids = worker.pids
    before = worker.output.count("\n")
    began = time.monotonic()
    used = _cpu_seconds(pids)
    yield
    remains(lambda: worker.pids == pids, seconds=began + seconds - time.monotonic(), what="a process has ended")
    used = _cpu_seconds(pids) - used
    wall = time.monotonic() - began
    lines = worker.output.splitlines()[before:]
    assert len(lines) < FEW_LINES, "\n".join(lines)
    assert used < LITTLE_CPU * wall * len(pids), f"{used:.1f} s of CPU in {wall:.1f} s"


def _cpu_seconds(pids: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(time.user + time.system for time in times)
