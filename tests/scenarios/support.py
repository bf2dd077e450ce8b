"""One adapter from its source to PostgreSQL as a scenario sees it: real workers and commands, seen from outside."""

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from proxy import Proxy
from waiting import eventually
from worker import Worker

from switchboard.config import read_adapters
from switchboard.errors import BrokerUnavailable, PublishRejected
from switchboard.pull import Publisher

#: The adapter, its source and its todo queue.
NAME = "line"

#: A body that no todo can have: nested deeper than JSON may be.
TOO_DEEP = b"[" * 600 + b"]" * 600

#: A team's provider that a message kills. Each death is noted before it happens, so that it can be counted from here.
DEADLY_PROVIDER = """
import os, signal
from switchboard.normalize.generic import normalize_generic

def shape(delivery):
    if delivery.body == b"deadly":
        with open("deaths", "a") as deaths:
            deaths.write("one\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return normalize_generic(delivery)
"""

#: PostgreSQL refuses one todo for what it is.
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not here'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON todos FOR EACH ROW WHEN (NEW.title = 'refused') EXECUTE FUNCTION refuse();
"""


@dataclass
class Line(ABC):
    """`source_url` and `database_url` are looked at from here; `reached_by` is the source's address for workers and
    commands, where a proxy or another user stands between."""

    folder: Path
    database_url: str
    source_url: str
    transport_url: str
    options: dict[str, object] = field(default_factory=dict)
    reached_by: str = ""
    env: dict[str, str] = field(default_factory=dict)

    transport: ClassVar[str]
    #: The option that says what is read.
    place: ClassVar[str]

    def __post_init__(self) -> None:
        self.source = redis.Redis.from_url(self.source_url)

    def close(self) -> None:
        self.source.close()

    # What differs between transports

    @abstractmethod
    def put(self, *bodies: bytes) -> None:
        """Puts these on the source as any other producer does, all at once."""

    @abstractmethod
    def left(self) -> int:
        """How many messages are at the source, unread or un-acknowledged."""

    # Workers and commands

    def configure(self, **options: object) -> str:
        """Writes switchboard.toml; these options come on top."""
        self.options |= options
        table = {"type": self.transport, "url": "${LINE_URL}", self.place: NAME, "queue": NAME, **self.options}
        text = "\n".join([f"[adapters.{NAME}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        (self.folder / "switchboard.toml").write_text(text)
        return text

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url,
            "SWITCHBOARD_BROKER_URL": self.transport_url,
            "SWITCHBOARD_CONFIG": "",
            "LINE_URL": self.reached_by or self.source_url,
            **self.env,
        }

    def worker(self, *modules: str, env: Mapping[str, str] = {}) -> Worker:
        self.configure()
        return Worker([*modules, "switchboard.actors"], cwd=self.folder, env={**self.environment, **env})

    @contextmanager
    def running(self, *modules: str, env: Mapping[str, str] = {}) -> Iterator[Worker]:
        """A worker that has said it is ready."""
        with self.worker(*modules, env=env) as worker:
            worker.wait_ready()
            yield worker

    def begin(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """`switchboard` as a command that runs."""
        self.configure()
        return subprocess.Popen(
            [sys.executable, "-m", "switchboard.cli", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def switchboard(self, *arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[str]":
        """`switchboard`, its exit status and what it said."""
        with self.begin(*arguments, stdin=subprocess.PIPE) as command:
            try:
                out, err = command.communicate(given, timeout=60)
            finally:
                command.kill()
        return subprocess.CompletedProcess(arguments, command.returncode, out.decode(), err.decode())

    def publish(self, body: bytes, *options: str) -> str:
        """Publishes one message with `switchboard publish`; what the source answered."""
        done = self.switchboard("publish", NAME, "--json", *options, given=body)
        assert done.returncode == 0, done.stderr
        [answer] = json.loads(done.stdout)
        return str(answer["id"])

    @contextmanager
    def publisher(self, *, seconds: float) -> Iterator[Publisher]:
        """The publisher as a program of a team has it."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LINE_URL", self.environment["LINE_URL"])
            [adapter] = read_adapters(self.configure())
        try:
            yield Publisher(adapter, timeout=timedelta(seconds=seconds))
        finally:
            adapter.close()

    # The ledger

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        options = "-c statement_timeout=10s"
        with psycopg.connect(self.database_url, autocommit=True, options=options) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def todos(self) -> list[bytes]:
        """The body of each todo's event, oldest first."""
        query = "SELECT e.payload FROM todos t LEFT JOIN events e ON e.id = t.event_id WHERE t.queue = %s ORDER BY t.id"
        return [body for (body,) in self.rows(query, NAME)]

    def events(self) -> list[bytes]:
        """The body of each event that is a message."""
        query = "SELECT payload FROM events WHERE source = %s AND event_type <> 'switchboard.gap' ORDER BY id"
        return [body for (body,) in self.rows(query, NAME)]

    def gaps(self) -> list[Any]:
        """The seconds of each recorded gap."""
        query = "SELECT payload FROM events WHERE source = %s AND event_type = 'switchboard.gap' ORDER BY id"
        return [json.loads(payload)["seconds"] for (payload,) in self.rows(query, NAME)]

    def dead_letters(self) -> list[tuple[Any, ...]]:
        """Reason, body and deliveries of each."""
        return self.rows("SELECT reason, payload, deliveries FROM dead_letters WHERE adapter = %s ORDER BY id", NAME)

    def transactions(self) -> int:
        """In how many transactions events, todos and dead letters came to be: each row has its transaction's time."""
        query = (
            "SELECT count(DISTINCT at) FROM (SELECT received_at AS at FROM events WHERE event_type <> "
            "'switchboard.gap' UNION SELECT created_at FROM todos UNION SELECT received_at FROM dead_letters) AS times"
        )
        return int(self.rows(query)[0][0])

    def end_todos(self) -> None:
        """As handlers do that complete them."""
        self.rows("UPDATE todos SET state = 'done', completed_at = now()")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else can read or write events meanwhile."""
        connection = psycopg.connect(self.database_url)
        try:
            connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
            yield
        finally:
            with suppress(psycopg.Error):  # its server may have been killed
                connection.rollback()
            connection.close()

    def wait_blocked(self, inserts: int = 1) -> None:
        """Returns when so many inserts of workers wait for `locked`."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT%' "
            "AND datname = current_database()"
        )
        eventually(lambda: self.rows(query)[0][0] >= inserts, within=20, what=f"{inserts} inserts wait for the lock")

    # What must hold

    def settle(self, *bodies: bytes, worker: Worker | None = None, within: float = 20) -> None:
        """Returns when exactly these are todos, each with its event, and nothing is left at the source."""

        def done() -> bool:
            return len(self.todos()) >= len(bodies) and not self.left()

        try:
            eventually(done, within=within, what=f"{len(bodies)} are stored and acknowledged")
        except AssertionError as late:
            output = worker.output if worker else ""
            state = f"todos {self.todos()}, dead letters {self.dead_letters()}, left {self.left()}"
            raise AssertionError(f"{late}\n{state}\n{output}") from None
        assert sorted(self.todos()) == sorted(bodies)
        assert sorted(self.events()) == sorted(bodies)

    def wait_dead_letters(self, count: int, worker: Worker) -> None:
        try:
            eventually(lambda: len(self.dead_letters()) >= count and not self.left(), within=20)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.dead_letters()}, left {self.left()}\n{worker.output}") from None


def through(proxy: Proxy, url: str) -> str:
    return urlsplit(url)._replace(netloc=f"{proxy.url_host}:{proxy.port}").geturl()


def as_user(url: str, user: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:secret@{parts.hostname}:{parts.port}").geturl()


def set_user(source: "redis.Redis", user: str, *rules: str) -> None:
    """A user of the source who may do all that these rules leave."""
    every = ("on", ">secret", "~*", "&*", "+@all")
    source.execute_command("ACL", "SETUSER", user, *every, *rules)  # type: ignore[no-untyped-call]


def calls(source: "redis.Redis", command: str) -> int:
    """How often the server was asked that, refused calls included."""
    stats = source.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("calls", 0)) + int(stats.get("rejected_calls", 0))


def wait_no_reader(source: "redis.Redis") -> None:
    """Returns when the read that was under way as an outage began has ended."""
    eventually(lambda: not source.info("clients")["blocked_clients"], within=5, what="nobody reads")


def said(worker: Worker, text: str, *, within: float = 20) -> None:
    """Returns when the worker has logged that text."""
    try:
        eventually(lambda: text in worker.output, within=within, what=f"it says {text!r}")
    except AssertionError as late:
        raise AssertionError(f"{late}\n{worker.output}") from None


def remains(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Holds that it is true for so long: what must not happen has no condition to wait for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), what
        time.sleep(0.1)


def logged(worker: Worker, *texts: str) -> int:
    """How many lines of the log have all these texts."""
    return sum(all(text in line for text in texts) for line in worker.output.splitlines())


def assert_one_outage(worker: Worker, who: str) -> None:
    """It said once that it is away, once that it is back, and nothing went wrong otherwise."""
    said(worker, f"{who} is back") if who == "the ledger" else said(worker, "is back")
    assert logged(worker, f"adapter {NAME}: {who}", "is unavailable") == 1, worker.output
    assert logged(worker, f"adapter {NAME}: {who}", "is back") == 1, worker.output
    assert "Traceback" not in worker.output, worker.output


def restart(worker: Worker) -> None:
    """As a supervisor does that has lost its patience once a process of it was killed."""
    worker.kill_all()
    worker.start()
    worker.wait_ready()


def pid_in(consumer: str) -> int:
    """The process that a consumer is named for."""
    return int(consumer.split("/")[2])


def pid_at(address: str, workers: list[Worker]) -> int:
    """Which worker process has the connection that the server sees at that address."""
    port = int(address.rpartition(":")[2])
    for pid in [pid for worker in workers for pid in worker.pids]:
        with suppress(psutil.NoSuchProcess):
            if any(each.laddr and each.laddr.port == port for each in psutil.Process(pid).net_connections("tcp")):
                return pid
    raise AssertionError(f"no worker process has {address}")


def release_locks(line: Line) -> None:
    """Ends whoever has `locked` the ledger."""
    line.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'events'::regclass "
        "AND mode = 'AccessExclusiveLock' AND granted"
    )


def deaths(line: Line) -> int:
    """How often `DEADLY_PROVIDER` has killed its worker."""
    noted = line.folder / "deaths"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


# Steps that every transport's publisher takes


def assert_publish_gives_up_in_time(line: Line) -> None:
    """The source is away: the publisher tries until its timeout and says so."""
    began = time.monotonic()
    failed = line.switchboard("publish", NAME, "--timeout", "1", given=b"never")
    assert failed.returncode == 1
    assert "never" not in failed.stderr
    assert time.monotonic() - began < 15
    began = time.monotonic()
    with line.publisher(seconds=1) as publisher, pytest.raises(BrokerUnavailable):
        publisher.publish(b"never")
    assert 0.1 <= time.monotonic() - began < 5, "tried again, and not beyond its timeout"


def publish_through_a_cut(line: Line, proxy: Proxy, body: bytes) -> None:
    """The first try of `switchboard publish` ends with its connection, the next one succeeds."""

    def connections() -> int:
        return int(line.source.info("stats")["total_connections_received"])

    (line.folder / "body").write_bytes(body)
    proxy.stall()
    before = connections()
    with line.begin("publish", NAME, "body") as command:
        try:
            eventually(lambda: connections() > before, within=20, what="the publisher has connected")
            proxy.cut()
            proxy.flow()
            _, err = command.communicate(timeout=40)
        finally:
            command.kill()
    assert command.returncode == 0, err


def assert_rejected_at_once(line: Line, command: str, *, reason: str, options: tuple[str, ...] = ()) -> None:
    """The server refuses the message for good: exit status 1 with the reason, after one try."""
    body = b'{"job": "resize"}'
    before = calls(line.source, command)
    refused = line.switchboard("publish", NAME, *options, given=body)
    assert refused.returncode == 1, refused
    assert reason in refused.stderr
    assert calls(line.source, command) == before + 1, "tried again"
    with line.publisher(seconds=30) as publisher, pytest.raises(PublishRejected, match=reason):
        publisher.publish(body)
    assert calls(line.source, command) == before + 2, "tried again"


def assert_no_such_message(line: Line, command: str, *options: str) -> None:
    """The transport cannot carry what is asked: exit status 1 or 2, and nothing is sent."""
    before = calls(line.source, command)
    refused = line.switchboard("publish", NAME, *options, given=b"body")
    assert refused.returncode in (1, 2), refused
    assert refused.stderr.strip(), refused
    assert calls(line.source, command) == before


# Dead letters


def assert_dead_letters_logged(worker: Worker, reason: str, count: int) -> None:
    assert logged(worker, "[ERROR]", f"dead letter from adapter {NAME}: {reason}: ") == count, worker.output


def replay_with_a_larger_max_body(line: Line, body: bytes) -> None:
    """The operator raises `max_body` and replays that message, and discards the other one."""
    [(first,)] = line.rows("SELECT id FROM dead_letters WHERE payload = %s", body)
    [(second,)] = line.rows("SELECT id FROM dead_letters WHERE payload <> %s", body)
    before = line.todos()
    line.options["max_body"] = "1MiB"
    with line.running():  # an adapter's settings are those of its workers
        pass
    done = line.switchboard("dead-letters", "replay", str(first))
    assert done.returncode == 0, done.stderr
    done = line.switchboard("dead-letters", "discard", str(second))
    assert done.returncode == 0, done.stderr
    assert line.todos() == [*before, body]
    resolved = line.rows("SELECT id, resolution FROM dead_letters WHERE resolved_at IS NOT NULL")
    assert sorted(resolved) == sorted([(first, "replayed"), (second, "discarded")])


class Sentry:
    """A server that takes what a worker reports, where `SENTRY_DSN` is its `dsn`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        sentry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                sentry.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self._server.server_port}/1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, envelope: bytes) -> None:
        for line in envelope.split(b"\n"):
            with suppress(ValueError):
                item = json.loads(line)
                if isinstance(item, dict) and "event_id" in item and "level" in item:
                    self.events.append(item)

    def wait_told(self, reason: str) -> None:
        """Returns when it has one event of a dead letter with that reason; it has no second one."""
        eventually(lambda: self._of(reason), what=f"Sentry is told of a dead letter {reason}")
        [event] = self._of(reason)
        assert event["level"] == "error"
        assert event["tags"]["switchboard.adapter"] == NAME

    def _of(self, reason: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("tags", {}).get("switchboard.reason") == reason]
