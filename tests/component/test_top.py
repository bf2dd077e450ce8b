"""`switchboard top` on a real database and a real terminal."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from signals import inherited_by_none
from waiting import eventually

from switchboard.embedded import PostgresServer
from switchboard.ledger import Connection, Ledger, migrate, note_poll
from switchboard.process_name import process_name

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_URL}"
stream = "deploys"
queue = "work"
"""

COMMAND = [sys.executable, "-m", "switchboard.cli", "top"]


@dataclass
class Terminal:
    """The command on a terminal of 120 columns: what it wrote, and keys for it."""

    process: "subprocess.Popen[bytes]"
    keyboard: int
    seen: bytearray = field(default_factory=bytearray)

    def shows(self, text: str) -> None:
        def look() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                self.seen += os.read(self.keyboard, 65536)
            return text.encode() in self.seen

        eventually(look, within=90, what=f"the terminal shows {text!r}")

    def press(self, key: bytes) -> None:
        os.write(self.keyboard, key)

    def ended(self) -> int:
        def over() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                self.seen += os.read(self.keyboard, 65536)
            return self.process.poll() is not None

        eventually(over, within=60, what="it has ended")
        assert b"Traceback" not in self.seen
        return self.process.returncode


@dataclass
class Top:
    folder: Path
    env: dict[str, str]

    def run(self, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, *options], cwd=self.folder, env={**os.environ, **self.env}, capture_output=True, text=True,
            timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def page(self) -> dict[str, Any]:
        done = self.run("--json")
        assert (done.returncode, done.stderr) == (0, "")
        [page] = json.loads(done.stdout)
        return dict(page)

    @contextmanager
    def on_terminal(self, *options: str) -> Iterator[Terminal]:
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.set_blocking(ours, False)
        environment = {**os.environ, **self.env, "TERM": "xterm"}
        with inherited_by_none():
            process = subprocess.Popen(
                [*COMMAND, *options], cwd=self.folder, env=environment, stdin=its, stdout=its, stderr=its,
                start_new_session=True,
            )  # fmt: skip
        os.close(its)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)


@pytest.fixture
def top(tmp_path: Path, database_url: str, redis_url: str) -> Top:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    (tmp_path / "switchboard.toml").write_text(CONFIG)
    return Top(tmp_path, {"DATABASE_URL": database_url, "DEPLOYS_URL": redis_url, "SWITCHBOARD_CONFIG": ""})


@pytest.fixture
def connection(top: Top) -> Iterator[Connection]:
    with closing(Ledger(top.env["DATABASE_URL"])) as ledger, closing(ledger.connect()) as connection:
        connection.autocommit = True
        connection.execute("INSERT INTO adapters (name, family, trust_mode) VALUES ('deploys', 'queue', 'queue')")
        note_poll(connection, process=process_name(), adapter="deploys", polled_ago=timedelta(0))
        yield connection


def add_todos(connection: Connection, queue: str, state: str, number: int, ended: timedelta | None = None) -> None:
    connection.execute(
        "INSERT INTO todos (queue, title, state, completed_at, created_at)"
        " SELECT %s, 't', %s, now() - %s::interval, now() - interval '1 minute' FROM generate_series(1, %s)",
        (queue, state, ended, number),
    )


def test_a_page_says_what_the_ledger_and_the_brokers_say(
    top: Top, connection: Connection, redis_client: "redis.Redis"
) -> None:
    redis_client.xgroup_create("deploys", "switchboard", mkstream=True)
    for _ in range(4):
        redis_client.xadd("deploys", {"a": "b"})
    add_todos(connection, "work", "pending", 3)
    add_todos(connection, "work", "failed", 2, timedelta(0))
    add_todos(connection, "work", "done", 20, timedelta(hours=-1))
    add_todos(connection, "other", "claimed", 1)
    event = "INSERT INTO events (source, family, trust_mode, payload, payload_size, received_at) VALUES "
    connection.execute((event + "('deploys', 'queue', 'queue', '', 0, now() + interval '1 hour')").encode())
    connection.execute("INSERT INTO upkeep (job, last_succeeded_at, last_duration_seconds) VALUES ('reap', now(), 1)")

    page = top.page()
    assert sorted(page) == ["adapters", "at", "todos", "upkeep"]
    [deploys] = page["adapters"]
    assert {name: deploys[name] for name in ("name", "enabled", "lag", "pending", "consumers")} == {
        "name": "deploys",
        "enabled": True,
        "lag": 4,
        "pending": 0,
        "consumers": 1,
    }
    # One in ten seconds; twenty in ten seconds.
    assert deploys["stored_per_second"] == 0.1
    other, work = page["todos"]
    assert (other["queue"], other["claimed"], other["pending"]) == ("other", 1, 0)
    assert (work["pending"], work["claimed"], work["failed"], work["done_per_second"]) == (3, 0, 2, 2.0)
    assert 60 <= work["oldest_pending_seconds"] < 600
    assert [(job["job"], job["overdue"]) for job in page["upkeep"]] == [("prune", False), ("reap", False)]
    assert page["upkeep"][1]["last_success_seconds"] < 60


def test_without_a_terminal_and_with_once_it_prints_one_page(top: Top, connection: Connection) -> None:
    add_todos(connection, "work", "pending", 3)
    for done in (top.run(), top.run("--once")):
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert "adapters" in lines
        assert any(line.split()[:2] == ["work", "3"] for line in lines)
        assert "\x1b" not in done.stdout


def test_only_what_could_be_known_is_marked_as_unknown(top: Top, connection: Connection) -> None:
    top.env["DEPLOYS_URL"] = "redis://127.0.0.1:1/0"
    connection.execute("INSERT INTO adapters (name, family, trust_mode) VALUES ('repos', 'webhook', 'signed')")
    cells = {line.split()[0]: line.split() for line in top.run("--once").stdout.splitlines() if line}
    # Name, queue, enabled, trust, lag, pending.
    assert cells["deploys"][:6] == ["deploys", "-", "yes", "queue", "?", "?"]
    assert cells["repos"][:6] == ["repos", "-", "yes", "signed", "-", "-"]


def test_it_keeps_the_page_up_to_date_until_q(top: Top, connection: Connection) -> None:
    with top.on_terminal("--interval", "0.2") as terminal:
        terminal.shows("deploys")
        add_todos(connection, "later", "pending", 7654)
        terminal.shows("7654")
        terminal.press(b"x")
        add_todos(connection, "later", "pending", 1)
        terminal.shows("7655")
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_q_ends_it_whatever_was_typed_before_it(top: Top, connection: Connection) -> None:
    with top.on_terminal() as terminal:
        terminal.shows("upkeep")
        terminal.press(b"xq")
        assert terminal.ended() == 0


def test_an_interrupt_ends_it_with_0(top: Top, connection: Connection) -> None:
    with top.on_terminal() as terminal:
        terminal.shows("upkeep")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 0


def test_it_goes_on_when_the_ledger_is_back(top: Top, own_postgres: PostgresServer) -> None:
    with closing(Ledger(own_postgres.url)) as ledger:
        migrate(ledger)
    top.env["DATABASE_URL"] = own_postgres.url
    with top.on_terminal("--interval", "0.2") as terminal:
        terminal.shows("upkeep")
        own_postgres.kill()
        terminal.shows("look: connect")
        own_postgres.start()
        with psycopg.connect(own_postgres.url, autocommit=True) as connection:
            connection.execute("INSERT INTO todos (queue, title) VALUES ('after-it', 't')")
        terminal.shows("after-it")
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_a_ledger_that_is_away_is_an_error(top: Top) -> None:
    top.env["DATABASE_URL"] = "postgresql://127.0.0.1:1/x"
    done = top.run("--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert "refused" in done.stderr
