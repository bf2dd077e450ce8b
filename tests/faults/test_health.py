"""What `switchboard health` says of real workers that are frozen, stuck, busy, killed and started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from line import Line, remains
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer, ValkeyServer

#: Seconds that `--within` allows, and how long the tests wait for what must be said by then.
WITHIN, SOON = 4, 30

TEAM = """
import os, time
import switchboard

@switchboard.todo(queue="line")
def hold(todo):
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@dataclass
class Watched(Line):
    """A line whose workers write their pulses into a directory of this test's own."""

    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state_dir = self.folder / "state"
        self.env["SWITCHBOARD_STATE_DIR"] = str(self.state_dir)

    def health(self, what: str, within: float = WITHIN) -> tuple[bool, str]:
        """The answer by its exit status, and why; both forms of it have to agree."""
        command = [sys.executable, "-m", "switchboard.cli", "health", what, "--within", str(within), "--json"]
        ran = subprocess.run(
            command, cwd=self.folder, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60
        )
        assert ran.stderr == ""
        [said] = json.loads(ran.stdout)
        assert ran.returncode == (0 if said["ok"] else 1)
        assert said["health"] == what
        return said["ok"], said["why"]

    def wait(self, what: str, ok: bool, *words: str) -> str:
        """Why, as soon as the answer is this one and names all of these."""

        def answered() -> str:
            is_ok, why = last[:] = self.health(what)
            return why if is_ok is ok and all(word in why for word in words) else ""

        last: list[Any] = []
        try:
            return eventually(answered, within=SOON, every=0.2)
        except AssertionError as late:
            raise AssertionError(f"{what} was to be {ok} and to name {words}; it is {last}") from late

    @contextmanager
    def ready(self, **how: Any) -> Iterator[Worker]:
        with self.running(**how) as worker:
            self.wait("ready", True)
            yield worker


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Watched:
    return Watched(tmp_path, database_url, redis_url)


def test_no_worker_is_neither_live_nor_ready_and_a_killed_one_vanishes(line: Watched) -> None:
    nobody = (False, "no worker process runs here")
    assert line.health("live") == line.health("ready") == nobody
    with line.ready(processes=2) as worker:
        line.wait("live", True, "worker processes: 2")
        assert len(list(line.state_dir.glob("*.json"))) == 2
        assert line.state_dir.stat().st_mode & 0o777 == 0o700
        worker.kill_all()
        assert line.health("live") == nobody
        assert list(line.state_dir.iterdir()) == []
        worker.start()
        line.wait("ready", True, "worker processes: 2")
        worker.terminate()
        assert list(line.state_dir.iterdir()) == []


@pytest.mark.parametrize("transport", ["redis-stream", "redis-list", "redis-pubsub"])
def test_a_frozen_source_ends_readiness_and_its_return_brings_it_back(
    tmp_path: Path, database_url: str, redis_url: str, own_valkey: ValkeyServer, transport: str
) -> None:
    key = {"redis-stream": "stream", "redis-list": "list", "redis-pubsub": "channel"}[transport]
    line = Watched(tmp_path, database_url, redis_url, env={"LINE_URL": own_valkey.url})
    worker = line.worker()
    config = line.folder / "switchboard.toml"
    text = config.read_text().replace("redis-stream", transport).replace("stream =", f"{key} =")
    config.write_text(text + ("loss_tolerant = true\n" if transport == "redis-pubsub" else ""))
    with worker:
        worker.wait_ready()
        line.wait("ready", True)
        own_valkey.suspend()
        line.wait("ready", False, "adapter.line", "source has not answered")
        assert line.health("live")[0], "a restart does not help against an outage"
        own_valkey.resume()
        line.wait("ready", True)


def test_a_frozen_postgres_ends_readiness_and_its_return_brings_it_back(
    tmp_path: Path, redis_url: str, own_postgres: PostgresServer
) -> None:
    line = Watched(tmp_path, own_postgres.url, redis_url)
    with line.ready():
        own_postgres.suspend()
        line.wait("ready", False, "the ledger has not answered")
        assert line.health("live")[0]
        own_postgres.resume()
        line.wait("ready", True)


def test_a_stuck_query_ends_readiness_until_it_goes_on(line: Watched) -> None:
    with line.ready() as worker:
        with line.locked():
            line.publish(3)
            line.wait_blocked()
            line.wait("ready", False, "adapter.line", "storing one batch")
            assert line.health("live")[0]
        line.settle(worker)
        line.wait("ready", True)


def test_a_queue_of_todos_that_cannot_be_claimed_ends_readiness(line: Watched) -> None:
    (line.folder / "team.py").write_text(TEAM)
    with line.ready(modules=("team", "switchboard.actors")):
        line.wait("ready", True, "consumers: 2")
        with line.locked("todos"):
            line.wait("ready", False, "todo.line")
        line.wait("ready", True)


def test_a_worker_whose_hands_are_full_stays_ready(line: Watched) -> None:
    (line.folder / "team.py").write_text(TEAM)
    line.options = {"batch": 10}
    with line.ready(modules=("team", "switchboard.actors"), threads=1) as worker:
        line.publish(20)
        eventually(lambda: line.value("SELECT count(*) FROM todos WHERE state = 'claimed'"), within=20)
        # The one thread is in a handler: two batches wait for it, and nothing more is read.
        line.publish(100)
        eventually(lambda: line.group()["lag"] and "busy" in line.health("ready")[1], within=20)
        remains(lambda: line.health("ready")[0], seconds=WITHIN * 2, what="a busy worker is not ready")
        assert line.group()["lag"] > 0, line.state() + worker.output
        (line.folder / "go").touch()
        line.settle(worker)


def test_a_stopped_process_is_not_live_and_is_named(line: Watched) -> None:
    with line.ready(processes=2) as worker:
        stopped = worker.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            line.wait("live", False, f"process {stopped} has been silent")
            assert not line.health("ready")[0]
        finally:
            os.kill(stopped, signal.SIGCONT)
        line.wait("live", True, "worker processes: 2")
        line.wait("ready", True)


def test_an_adapter_that_is_disabled_does_not_need_its_source(
    tmp_path: Path, database_url: str, redis_url: str, own_valkey: ValkeyServer
) -> None:
    line = Watched(tmp_path, database_url, redis_url, env={"LINE_URL": own_valkey.url})
    with line.ready():
        line.rows("UPDATE adapters SET enabled = false")
        line.wait("ready", True, "adapter.line is disabled")
        own_valkey.suspend()
        remains(lambda: line.health("ready")[0], seconds=WITHIN * 2, what="a disabled adapter is not ready")
