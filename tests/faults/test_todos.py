"""Todos under real workers that are killed, stopped, frozen and cut off: handled once, and never by two at a time.

A handler notes its begin and its end in a file that is only appended to, so that what it did is known whatever became
of its worker and of PostgreSQL.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from line import FEW_LINES, LITTLE_CPU, group_of, remains, restart, said
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer
from switchboard.ledger import Ledger, migrate

TASKS = """
import os, time
from datetime import timedelta

import dramatiq
import switchboard

dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["TEAM_URL"]))
notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(todo, what):
    os.write(notes, f"{todo.id} {os.getpid()} {todo.attempt} {time.time()} {what}\\n".encode())


def work(todo):
    note(todo, "began")
    wanted = todo.payload or {}
    deadline = time.monotonic() + wanted.get("seconds", 0)
    while time.monotonic() < deadline or ("until" in wanted and not os.path.exists(wanted["until"])):
        time.sleep(0.01)
    note(todo, "ended")
    return {"pid": os.getpid()}


@switchboard.todo(queue="work", lease=timedelta(seconds=float(os.environ["LEASE"])))
def plain(todo):
    return work(todo)


@switchboard.todo(queue="booked", lease=timedelta(seconds=float(os.environ["LEASE"])), store_then_ack=True)
def booked(todo):
    switchboard.transaction().execute("INSERT INTO bookings VALUES (%s)", (todo.id,))
    return work(todo)
"""


@dataclass(frozen=True)
class Note:
    todo_id: int
    pid: int
    attempt: int
    at: float
    what: str


@dataclass
class Yard:
    """A database with todos, a team's module with handlers for them, and what those handlers noted."""

    folder: Path
    url: str
    redis_url: str
    lease_seconds: float = 2

    def worker(self, *, processes: int = 1, threads: int = 4, env: Mapping[str, str] = {}) -> Worker:
        environment = {
            "DATABASE_URL": self.url,
            "TEAM_URL": self.redis_url,
            "NOTES": str(self.folder / "notes"),
            "LEASE": str(self.lease_seconds),
            "SWITCHBOARD_NOTIFY": "",
            "SWITCHBOARD_LISTEN_URL": "",
            **env,
        }
        return Worker(("yard",), cwd=self.folder, env=environment, processes=processes, threads=threads)

    @contextmanager
    def running(self, **how: Any) -> Iterator[Worker]:
        with self.worker(**how) as worker:
            worker.wait_ready()
            yield worker

    # The ledger

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        options = "-c statement_timeout=10s"
        with psycopg.connect(self.url, autocommit=True, options=options, row_factory=dict_row) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def make(self, count: int = 1, *, queue: str = "work", **payload: object) -> list[int]:
        """Todos in one transaction, with one nudge."""
        query = """
            WITH made AS (
                INSERT INTO todos (queue, title, payload) SELECT %s, 'work', %s FROM generate_series(1, %s) RETURNING id
            )
            SELECT id, pg_notify('todo_ready', %s) FROM made ORDER BY id
        """
        return [row["id"] for row in self.rows(query, queue, Jsonb(payload), count, queue)]

    def row(self, todo_id: int) -> dict[str, Any]:
        return self.rows("SELECT * FROM todos WHERE id = %s", todo_id)[0]

    def states(self) -> Counter[str]:
        query = "SELECT state, count(*) AS n FROM todos GROUP BY state"
        return Counter({row["state"]: row["n"] for row in self.rows(query)})

    def settle(self, count: int, worker: Worker, *, within: float = 40) -> None:
        """Returns when so many todos are done, and no other is there."""
        try:
            eventually(lambda: self.states() == {"done": count}, within=within, every=0.1, what=f"{count} are done")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.states()}\n{worker.output[-6000:]}") from None

    def has_locks(self) -> bool:
        """Whether a worker's session is within a transaction that has written todos, once none has more to do."""
        ours = "FROM pg_stat_activity WHERE application_name = 'switchboard' AND datname = current_database()"
        eventually(lambda: not self.rows(f"SELECT {ours} AND state = 'active'"), what="no session is at work")
        locks = "relation = 'todos'::regclass AND mode IN ('RowExclusiveLock', 'RowShareLock')"
        return bool(self.rows(f"SELECT FROM pg_locks WHERE {locks} AND pid IN (SELECT pid {ours})"))

    # The notes

    def notes(self, *todo_ids: int) -> list[Note]:
        path = self.folder / "notes"
        found = []
        for line in path.read_text().splitlines() if path.exists() else []:
            todo_id, pid, attempt, at, what = line.split()
            note = Note(int(todo_id), int(pid), int(attempt), float(at), what)
            if not todo_ids or note.todo_id in todo_ids:
                found.append(note)
        return found

    def began(self, *todo_ids: int) -> list[Note]:
        return [note for note in self.notes(*todo_ids) if note.what == "began"]

    def wait_began(self, todo_id: int) -> Note:
        return eventually(lambda: self.began(todo_id), within=15, every=0.02, what=f"todo {todo_id} has begun")[0]

    def assert_each_once(self, todo_ids: list[int]) -> None:
        times = Counter(note.todo_id for note in self.began())
        assert times == Counter(todo_ids), {todo: n for todo, n in times.items() if n != 1}
        assert {row["attempt"] for row in self.rows("SELECT attempt FROM todos")} == {1}

    def assert_never_two_at_once(self) -> None:
        """No handler began a todo while another one's was between its begin and its end."""
        running: dict[int, Note] = {}
        for note in self.notes():
            if note.what == "began":
                before = running.get(note.todo_id)
                alive = before is not None and psutil.pid_exists(before.pid)
                assert not alive, f"{note} while {before}"
                running[note.todo_id] = note
            else:
                running.pop(note.todo_id, None)


@pytest.fixture
def yard(tmp_path: Path, database_url: str, redis_url: str) -> Yard:
    return prepare(Yard(tmp_path, database_url, redis_url))


@pytest.fixture
def own_yard(tmp_path: Path, own_postgres: PostgresServer, redis_url: str) -> Yard:
    """Its PostgreSQL is its own."""
    return prepare(Yard(tmp_path, own_postgres.url, redis_url))


def prepare(yard: Yard) -> Yard:
    (yard.folder / "yard.py").write_text(TASKS)
    ledger = Ledger(yard.url)
    migrate(ledger)
    ledger.close()
    yard.rows("CREATE TABLE bookings (todo_id bigint)")
    return yard


def timestamp(value: datetime) -> float:
    return value.timestamp()


def test_many_workers_handle_each_todo_once(yard: Yard) -> None:
    with yard.running(processes=3) as worker:
        todos = [todo_id for _ in range(6) for todo_id in yard.make(200)]
        yard.settle(len(todos), worker)
        yard.assert_each_once(todos)
        pids = {note.pid for note in yard.began()}
        assert len(pids) > 1, "one process alone has done it all"
        # Each todo's result is of the process that handled it.
        results = {row["id"]: row["result"]["pid"] for row in yard.rows("SELECT id, result FROM todos")}
        assert results == {note.todo_id: note.pid for note in yard.began()}
        assert "Traceback" not in worker.output, worker.output


def test_a_killed_workers_todo_is_handled_again_by_another_after_its_lease(yard: Yard) -> None:
    go = yard.folder / "go"
    with yard.running() as killed, yard.running() as other:
        todo_id = yard.make(until=str(go))[0]
        first = yard.wait_began(todo_id)
        victim, survivor = (killed, other) if first.pid in killed.pids else (other, killed)
        victim.kill_all()
        lease = yard.row(todo_id)["lease_expires_at"]
        go.touch()
        eventually(lambda: yard.row(todo_id)["state"] == "done", within=20, what="the other has done it")
        second = yard.began(todo_id)[1]
        assert second.pid in survivor.pids
        assert second.attempt == 2
        # Not while the dead one's lease held, and soon after.
        assert timestamp(lease) <= second.at <= timestamp(lease) + 5
        assert yard.row(todo_id)["result"] == {"pid": second.pid}


def test_workers_that_are_killed_again_and_again_lose_nothing(yard: Yard) -> None:
    with yard.running(processes=2) as worker:
        todos: list[int] = []
        for _ in range(2):
            known = len(yard.began())
            todos += yard.make(150, seconds=0.02)
            eventually(lambda: len(yard.began()) >= known + 20, within=60, every=0.01, what="it is at work")  # noqa: B023
            worker.kill_one()
            restart(worker)
            worker.wait_ready()
        yard.settle(len(todos), worker)
    assert {note.todo_id for note in yard.began()} == set(todos)
    yard.assert_never_two_at_once()


def test_what_a_killed_handler_wrote_in_its_own_transaction_is_there_once(yard: Yard) -> None:
    with yard.running(processes=2) as worker:
        todos = yard.make(150, queue="booked", seconds=0.02)
        eventually(lambda: len(yard.began()) >= 30, within=60, every=0.01, what="it is at work")
        worker.kill_one()
        restart(worker)
        worker.wait_ready()
        yard.settle(len(todos), worker)
    booked = sorted(row["todo_id"] for row in yard.rows("SELECT todo_id FROM bookings"))
    assert booked == todos


def test_a_stopped_worker_loses_none_repeats_none_and_returns_what_it_has_not_begun(yard: Yard) -> None:
    go = yard.folder / "go"
    with yard.running(threads=2) as worker:
        todos = yard.make(12, until=str(go))
        eventually(lambda: len(yard.began()) == 2, within=15, what="both threads are busy")
        eventually(lambda: yard.states()["claimed"] > 2, within=15, what="it holds more than it has begun")
        worker.parent.terminate()
        said(worker, "Shutting down")
        go.touch()
        assert worker.parent.wait(20) == 0, worker.output
        begun = {note.todo_id for note in yard.began()}
        for row in yard.rows("SELECT * FROM todos"):
            if row["id"] in begun:
                assert (row["state"], row["attempt"]) == ("done", 1), row
            else:
                not_begun = (row["state"], row["attempt"], row["owner"], row["lease_expires_at"], row["last_error"])
                assert not_begun == ("pending", 0, None, None, None)
        assert len(begun) < len(todos)
        assert "Traceback" not in worker.output, worker.output
        worker.start()
        worker.wait_ready()
        yard.settle(len(todos), worker)
        yard.assert_each_once(todos)


def test_a_worker_that_is_stopped_at_full_speed_loses_none_and_repeats_none(yard: Yard) -> None:
    todos = yard.make(2_000, seconds=0.001)
    with yard.running(threads=8) as worker:
        eventually(lambda: len(yard.began()) > 200, within=15, every=0.01, what="it is at full speed")
        began = time.monotonic()
        assert worker.terminate(within=20) == 0, worker.output
        assert time.monotonic() - began < 10
        assert group_of(worker) == []
        states = yard.states()
        assert states["claimed"] == 0, states
        assert 0 < states["pending"] < len(todos), states
        assert {note.todo_id for note in yard.began()} == {
            row["id"] for row in yard.rows("SELECT id FROM todos WHERE state = 'done'")
        }
        worker.start()
        worker.wait_ready()
        yard.settle(len(todos), worker)
    yard.assert_each_once(todos)


def cpu_seconds(worker: Worker) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in worker.pids]
    return sum(time.user + time.system for time in times)


def test_a_handler_that_outlives_its_lease_ten_times_keeps_it_and_its_worker_stays_calm(yard: Yard) -> None:
    yard.lease_seconds = 2
    with yard.running(threads=1) as worker, yard.running(threads=1) as other:
        todos = yard.make(seconds=20)
        yard.wait_began(todos[0])
        began, used = time.monotonic(), cpu_seconds(worker) + cpu_seconds(other)
        yard.settle(len(todos), worker, within=40)
        used, wall = cpu_seconds(worker) + cpu_seconds(other) - used, time.monotonic() - began
        yard.assert_each_once(todos)
        assert "lease is another's" not in worker.output + other.output
        assert "lease has gone" not in worker.output + other.output
        assert used < LITTLE_CPU * wall * 2, f"{used:.1f} s of CPU in {wall:.1f} s"


def test_a_worker_whose_hands_are_full_uses_no_processor(yard: Yard) -> None:
    go = yard.folder / "go"
    with yard.running(threads=1) as worker:
        todos = yard.make(100, until=str(go))
        eventually(lambda: yard.states()["claimed"] > 1, within=15, what="it holds more than it can begin")
        used = seconds_of_cpu(worker, 3)
        go.touch()
        yard.settle(len(todos), worker)
    assert used < LITTLE_CPU * 3, f"{used:.1f} s of CPU in 3 s"


@pytest.mark.parametrize("first", ["the todos", "the worker"])
def test_a_worker_claims_no_more_than_its_threads_can_take(yard: Yard, first: str) -> None:
    go = yard.folder / "go"
    threads, todos = 2, 200
    if first == "the todos":
        yard.make(todos, until=str(go))
    with yard.running(threads=threads) as worker:
        if first == "the worker":
            yard.make(todos, until=str(go))
        eventually(lambda: len(yard.began()) == threads, within=15, what="its threads are busy")
        # Twice as many is what Dramatiq's own consumers take.
        until, held = time.monotonic() + 2, 0
        while time.monotonic() < until:
            held = max(held, yard.states()["claimed"])
        go.touch()
        yard.settle(todos, worker)
    assert held <= 2 * threads, "it holds what others could work"


def test_a_worker_that_waits_for_its_last_handler_in_order_to_stop_uses_no_processor_and_keeps_its_lease(
    yard: Yard,
) -> None:
    yard.lease_seconds = 2
    go = yard.folder / "go"
    with yard.running(threads=1) as worker, yard.running(threads=1) as other:
        todo_id = yard.make(until=str(go))[0]
        first = yard.wait_began(todo_id)
        stopping = worker if first.pid in worker.pids else other
        stopping.parent.terminate()
        said(stopping, "Shutting down")
        used = seconds_of_cpu(stopping, 5)
        go.touch()
        assert stopping.parent.wait(20) == 0, stopping.output
        assert yard.row(todo_id)["state"] == "done"
        yard.assert_each_once([todo_id])
    assert used < LITTLE_CPU * 5, f"{used:.1f} s of CPU in 5 s"


def seconds_of_cpu(worker: Worker, seconds: float) -> float:
    """What the worker's processes use in so long: what must not happen has no condition to wait for."""
    before = cpu_seconds(worker)
    time.sleep(seconds)
    return cpu_seconds(worker) - before


def test_a_row_that_somebody_locks_does_not_cost_its_neighbours_their_leases(yard: Yard) -> None:
    yard.lease_seconds = 3
    go = yard.folder / "go"
    with yard.running(threads=4) as worker:
        todos = yard.make(4, until=str(go))
        eventually(lambda: len(yard.began()) == 4, within=15, what="its threads are busy")
        with yard.running(threads=4) as other, psycopg.connect(yard.url) as somebody:
            somebody.execute("SELECT FROM todos WHERE id = %s FOR UPDATE", (todos[0],))
            remains(lambda: len(yard.began()) == 4, seconds=10, what="one is handled by two at once")
            # Its own lease has run out meanwhile: whoever came first would have it.
            later = "UPDATE todos SET lease_expires_at = clock_timestamp() + interval '1 minute' WHERE id = %s"
            somebody.execute(later, (todos[0],))
            somebody.commit()
            go.touch()
            yard.settle(len(todos), other)
            yard.assert_each_once(todos)
            assert "lease is another's" not in worker.output
            assert "lease has gone" not in worker.output


@contextmanager
def frozen(pid: int, yard: Yard) -> Iterator[None]:
    """Stops the process, but not within a transaction that has todos locked: nobody could take them from it."""
    os.kill(pid, signal.SIGSTOP)
    while yard.has_locks():
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_worker_that_was_frozen_past_its_lease_cannot_complete_what_another_has_taken(yard: Yard) -> None:
    go = yard.folder / "go"
    with yard.running(threads=1) as worker:
        todo_id = yard.make(until=str(go))[0]
        first = yard.wait_began(todo_id)
        with frozen(first.pid, yard):
            lease = yard.row(todo_id)["lease_expires_at"]
            go.touch()
            with yard.running() as other:
                eventually(lambda: yard.row(todo_id)["state"] == "done", within=20, what="the other has done it")
                second = yard.began(todo_id)[1]
                assert second.pid in other.pids
                assert second.at >= timestamp(lease)
                before = yard.row(todo_id)
        said(worker, f"todo {todo_id} of queue work: its lease is another's now")
        assert yard.row(todo_id) == before
        assert before["result"] == {"pid": second.pid}
        # And it goes on with what is its own.
        later = yard.make()[0]
        eventually(lambda: yard.row(later)["state"] == "done", what="it goes on")
        assert worker.pids == [first.pid]


def test_a_handler_in_its_own_transaction_that_was_frozen_past_its_lease_stores_nothing(yard: Yard) -> None:
    go = yard.folder / "go"
    with yard.running(threads=1) as worker:
        todo_id = yard.make(queue="booked", until=str(go))[0]
        first = yard.wait_began(todo_id)
        with frozen(first.pid, yard):
            go.touch()
            with yard.running() as other:
                eventually(lambda: yard.row(todo_id)["state"] == "done", within=20, what="the other has done it")
                second = yard.began(todo_id)[1]
                assert second.pid in other.pids
                before = yard.row(todo_id)
        said(worker, "its lease is another's now")
        eventually(lambda: len(yard.notes(todo_id)) == 4, what="the frozen handler has ended as well")
        assert yard.row(todo_id) == before
        assert len(yard.rows("SELECT todo_id FROM bookings")) == 1


def test_a_thawed_worker_does_not_begin_what_another_has_taken_meanwhile(yard: Yard) -> None:
    go = yard.folder / "go"
    with yard.running(threads=1) as worker:
        todos = yard.make(2, until=str(go))
        first = eventually(yard.began, within=15, what="its one thread is busy")[0]
        eventually(lambda: yard.states()["claimed"] == 2, within=15, what="it holds one that it has not begun")
        with frozen(first.pid, yard):
            go.touch()
            with yard.running() as other:
                yard.settle(2, other)
        said(worker, "its lease is another's now")
        later = yard.make()[0]
        eventually(lambda: yard.row(later)["state"] == "done", what="it goes on")
    waiting = next(todo_id for todo_id in todos if todo_id != first.todo_id)
    assert [note.pid == first.pid for note in yard.began(waiting)] == [False], "handled a second time, in vain"


def test_postgresql_is_killed_midway_and_started_again(own_yard: Yard, own_postgres: PostgresServer) -> None:
    # Longer than a restart takes: what ran out meanwhile is another's, and each is said.
    own_yard.lease_seconds = 10
    with own_yard.running() as worker:
        todos = own_yard.make(400, seconds=0.02)
        eventually(lambda: len(own_yard.began()) >= 50, within=15, every=0.01, what="it is at work")
        lines = worker.output.count("\n")
        own_postgres.kill()
        said(worker, "unavailable")
        own_postgres.start()
        own_yard.settle(len(todos), worker, within=60)
        said_lines = worker.output.splitlines()[lines:]
        assert len(said_lines) < FEW_LINES, "\n".join(said_lines)
    assert {note.todo_id for note in own_yard.began()} == set(todos)


@pytest.mark.parametrize("lease_seconds", [60, 2], ids=["within-the-lease", "beyond-it"])
def test_handlers_that_end_while_postgresql_is_away_are_completed_once_it_is_back(
    lease_seconds: float, own_yard: Yard, own_postgres: PostgresServer
) -> None:
    go = own_yard.folder / "go"
    own_yard.lease_seconds = lease_seconds
    with own_yard.running(threads=4) as worker:
        todos = own_yard.make(4, until=str(go))
        eventually(lambda: len(own_yard.began()) == 4, within=15, what="all four are at it")
        own_postgres.kill()
        said(worker, "unavailable")
        go.touch()
        eventually(lambda: len(own_yard.notes()) == 8, what="all four have ended")
        if lease_seconds < 10:
            # No reaper runs: nobody but their own worker could take them from it, which tries all it does anew by now.
            time.sleep(14)
        own_postgres.start()
        own_yard.settle(len(todos), worker)
        own_yard.assert_each_once(todos)


def test_a_worker_is_stopped_while_postgresql_is_away(own_yard: Yard, own_postgres: PostgresServer) -> None:
    with own_yard.running() as worker:
        todos = own_yard.make(200, seconds=0.02)
        eventually(lambda: len(own_yard.began()) >= 20, within=15, every=0.01, what="it is at work")
        own_postgres.suspend()
        try:
            began = time.monotonic()
            assert worker.terminate(within=40) == 0, worker.output
            assert time.monotonic() - began < 15, worker.output
        finally:
            own_postgres.resume()
        worker.start()
        worker.wait_ready()
        own_yard.settle(len(todos), worker)
    assert {note.todo_id for note in own_yard.began()} == set(todos)


def test_connections_are_ended_again_and_again_and_each_todo_is_done(yard: Yard) -> None:
    end_all = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'switchboard' AND datname = current_database()"
    )
    with yard.running() as worker:
        todos: list[int] = []
        pids = worker.pids
        for _ in range(4):
            known = len(yard.began())
            todos += yard.make(75, seconds=0.02)
            eventually(lambda: len(yard.began()) > known, within=20, every=0.01, what="it is at work")  # noqa: B023
            yard.rows(end_all)
        yard.settle(len(todos), worker)
        assert worker.pids == pids
    assert {note.todo_id for note in yard.began()} == set(todos)
