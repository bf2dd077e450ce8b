"""ack = "complete": stored at once, acknowledged when the todo has ended; and delete = true. With real workers."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from waiting import eventually
from worker import Worker

from switchboard import ingest
from switchboard.config import read_adapters
from switchboard.errors import ConfigError
from switchboard.ledger import Connection, Ledger, forget_acks, migrate, ready_acks
from switchboard.model import Batch, Delivery, Route
from switchboard.normalize import resolve_provider
from switchboard.pull import RedisStream

PARKED = "switchboard.stored"
GENERIC = resolve_provider("generic")
ROUTE = Route(adapter="deploys", queue="deploys", key_prefix="redis:deploys")


@dataclass
class Line:
    """One stream into one todo queue."""

    folder: Path
    database_url: str
    redis_url: str
    client: Any
    options: dict[str, object] = field(default_factory=lambda: {"ack": "complete"})

    def worker(self, processes: int = 1) -> Worker:
        table = {
            "type": "redis-stream",
            "url": "${DEPLOYS_URL}",
            "stream": "deploys",
            "queue": "deploys",
            **self.options,
        }
        lines = [
            f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in table.items()
        ]
        (self.folder / "switchboard.toml").write_text("\n".join(["[adapters.deploys]", *lines, ""]))
        env = {
            "DATABASE_URL": self.database_url,
            "SWITCHBOARD_BROKER_URL": self.redis_url,
            "DEPLOYS_URL": self.redis_url,
            "SWITCHBOARD_CONFIG": "",
        }
        return Worker(cwd=self.folder, env=env, processes=processes)

    @contextmanager
    def running(self, processes: int = 1) -> Iterator[Worker]:
        with self.worker(processes) as worker:
            worker.wait_ready()
            yield worker

    def publish(self, count: int, **fields: str) -> list[str]:
        pipeline = self.client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd("deploys", {"n": str(number), **fields})
        return [entry_id.decode() for entry_id in pipeline.execute()]

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def stored(self) -> int:
        try:
            return int(self.rows("SELECT count(*) FROM todos")[0][0])
        except psycopg.errors.UndefinedTable:
            return 0

    def pending(self, consumer: str | None = None) -> list[dict[str, Any]]:
        try:
            rows = self.client.xpending_range("deploys", "switchboard", "-", "+", 100_000, consumername=consumer)
        except redis.ResponseError:
            return []
        return list(rows)

    def parked(self) -> int:
        return len(self.pending(PARKED))

    def end(self, state: str = "done", which: str = "true") -> None:
        self.rows(f"UPDATE todos SET state = '{state}', completed_at = now() WHERE {which}")

    def wait_parked(self, count: int, within: float = 20) -> None:
        eventually(lambda: (self.stored(), self.parked()) == (count, count), within=within, what=f"{count} are parked")

    def wait_acknowledged(self, within: float = 20) -> None:
        eventually(lambda: not self.pending(), within=within, what="nothing is pending")
        eventually(lambda: not self.rows("SELECT 1 FROM pending_acks"), within=5, what="no row is left")


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis") -> Line:
    return Line(tmp_path, database_url, redis_url, redis_client)


def remains(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), what
        time.sleep(0.1)


# While the todo lives


def test_an_entry_is_stored_at_once_and_parked_un_acknowledged_and_that_counts_as_no_delivery(line: Line) -> None:
    line.options["claim_idle"] = "400ms"
    with line.running() as worker:
        line.publish(10)
        line.wait_parked(10)
        # Many times claim_idle: nobody claims, counts or acknowledges them.
        remains(lambda: line.parked() == 10, seconds=3, what="a parked entry is gone")
        assert {row["times_delivered"] for row in line.pending()} == {1}
        assert [row[0] for row in line.rows("SELECT DISTINCT state FROM todos")] == ["pending"]
        assert line.stored() == 10
        assert worker.terminate() == 0
    assert line.parked() == 10, "a stop gives none of them back"
    assert line.client.xlen("deploys") == 10


@pytest.mark.parametrize("state", ["done", "failed"])
def test_it_is_acknowledged_within_a_second_of_its_todos_end(line: Line, state: str) -> None:
    took = []
    with line.running():
        sent = line.publish(3)
        line.wait_parked(3)
        for number, entry_id in enumerate(sent):
            began = time.monotonic()
            line.end(state, f"idempotency_key = 'redis:deploys:{entry_id}'")
            left = 2 - number
            eventually(lambda left=left: line.parked() == left, every=0.02, what="it is acknowledged")  # type: ignore[misc]
            took.append(time.monotonic() - began)
            assert {row["message_id"].decode() for row in line.pending()} == set(sent[number + 1 :])
        line.wait_acknowledged()
    # Unless the machine stands still.
    assert min(took) < 1


def test_a_todo_that_is_claimed_or_waits_for_a_retry_has_not_ended(line: Line) -> None:
    with line.running():
        line.publish(1)
        line.wait_parked(1)
        line.rows("UPDATE todos SET state = 'claimed', owner = 'me', lease_expires_at = now() + interval '1 hour'")
        line.rows("UPDATE todos SET state = 'pending', owner = NULL")
        line.rows("UPDATE todos SET title = 'renamed'")
        remains(lambda: line.parked() == 1, seconds=1.5, what="it is acknowledged too early")
        line.end()
        line.wait_acknowledged()


def test_many_that_end_in_one_statement_are_all_acknowledged(line: Line) -> None:
    with line.running():
        line.publish(3000)
        line.wait_parked(3000, within=40)
        line.end()
        line.wait_acknowledged()


def test_a_todo_that_is_deleted_lets_its_entry_go(line: Line) -> None:
    with line.running():
        line.publish(2)
        line.wait_parked(2)
        line.rows("DELETE FROM todos WHERE id = (SELECT min(id) FROM todos)")
        eventually(lambda: line.parked() == 1, what="it is acknowledged")
        line.end()
        line.wait_acknowledged()


def test_todos_that_are_truncated_let_their_entries_go(line: Line) -> None:
    with line.running():
        line.publish(2)
        line.wait_parked(2)
        line.rows("TRUNCATE todos")
        line.wait_acknowledged()


def test_a_todo_that_is_tried_again_after_its_end_changes_nothing_at_the_source(line: Line) -> None:
    with line.running():
        line.publish(1)
        line.wait_parked(1)
        line.end("failed")
        line.wait_acknowledged()
        line.rows("UPDATE todos SET state = 'pending', attempt = 0, completed_at = NULL")
        line.end()
        remains(lambda: line.pending() == [], seconds=1, what="it is pending again")


def test_an_adapter_that_is_disabled_still_acknowledges_what_has_ended(line: Line) -> None:
    with line.running():
        line.publish(1)
        line.wait_parked(1)
        line.rows("UPDATE adapters SET enabled = false")
        line.end()
        line.wait_acknowledged()


# Across restarts


def test_what_ended_while_no_worker_ran_is_acknowledged_by_the_next(line: Line) -> None:
    with line.running() as worker:
        line.publish(4)
        line.wait_parked(4)
        assert worker.terminate() == 0
    line.end(which="id <> (SELECT min(id) FROM todos)")
    assert line.parked() == 4
    with line.running():
        eventually(lambda: line.parked() == 1, within=10, what="three are acknowledged")
        line.end()
        line.wait_acknowledged()
    assert line.stored() == 4


def test_a_worker_that_is_killed_leaves_all_to_the_next(line: Line) -> None:
    with line.running() as worker:
        line.publish(50)
        line.wait_parked(50)
        worker.kill_all()
    line.publish(50)
    with line.running():
        line.wait_parked(100)
        # Those parked before: the server may have granted the first new one to the killed worker's last read.
        assert {row["times_delivered"] for row in line.pending()[:50]} == {1}
        line.end()
        line.wait_acknowledged()
    assert line.rows("SELECT count(*) FROM events") == [(100,)]


def test_a_parked_entry_that_is_delivered_again_adds_nothing_and_is_parked_again(line: Line) -> None:
    with line.running() as worker:
        sent = line.publish(5)
        line.wait_parked(5)
        assert worker.terminate() == 0
    # As a crash between the commit and the parking leaves it: pending with somebody who is gone
    line.client.xclaim("deploys", "switchboard", "gone", 0, sent[:3], justid=True, idle=3_600_000)
    with line.running():
        line.wait_parked(5)
        assert line.rows("SELECT count(*) FROM events") == [(5,)]
        assert len(line.rows("SELECT 1 FROM pending_acks")) == 5
        line.end()
        line.wait_acknowledged()


def test_one_that_is_delivered_again_after_its_todos_end_is_acknowledged_and_adds_nothing(line: Line) -> None:
    with line.running() as worker:
        sent = line.publish(2)
        line.wait_parked(2)
        assert worker.terminate() == 0
    line.end()
    line.client.xclaim("deploys", "switchboard", "gone", 0, sent, justid=True, idle=3_600_000)
    with line.running():
        line.wait_acknowledged()
        assert line.stored() == 2


def test_two_workers_share_the_acknowledging(line: Line) -> None:
    with line.running(processes=2):
        line.publish(500)
        line.wait_parked(500, within=30)
        line.end()
        line.wait_acknowledged()


# Dead letters


def test_a_dead_letter_is_acknowledged_at_once_and_its_neighbours_are_parked(line: Line) -> None:
    line.options["body"] = "data"
    with line.running():
        line.publish(2, data='{"fine": 1}')
        line.publish(1, other="no body")
        line.wait_parked(2)
        eventually(lambda: len(line.pending()) == 2, within=3, what="the dead letter is acknowledged")
        assert line.rows("SELECT reason FROM dead_letters") == [("invalid",)]
        line.end()
        line.wait_acknowledged()


def test_an_id_conflict_with_a_live_todo_is_a_dead_letter_and_acknowledged_at_once_too(line: Line) -> None:
    line.options |= {"body": "data", "key": "idempotency_key"}
    with line.running():
        line.publish(1, data="one", idempotency_key="k")
        line.wait_parked(1)
        [conflict] = line.publish(1, data="another", idempotency_key="k")
        eventually(lambda: line.rows("SELECT 1 FROM dead_letters"), what="it is a dead letter")
        eventually(
            lambda: conflict not in {row["message_id"].decode() for row in line.pending()},
            within=3,
            what="the dead letter is acknowledged",
        )
        line.end()
        line.wait_acknowledged()


def test_a_producers_retry_is_acknowledged_when_the_one_todo_ends(line: Line) -> None:
    line.options |= {"body": "data", "key": "idempotency_key"}
    with line.running():
        line.publish(2, data="same", idempotency_key="k")
        # n differs, which is a header: the body is the same.
        eventually(lambda: (line.stored(), line.parked()) == (1, 2), what="both entries are parked")
        line.end()
        line.wait_acknowledged()


# The note and a todo that ends beside it


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


def delivery(handle: str, key: str = "1-1") -> Delivery:
    return Delivery(b"{}", key, "redis acl: default", handle=handle)


def store(connection: Connection, *deliveries: Delivery) -> Sequence[Delivery]:
    """As the ingest actor does: store, then note; returns what is to be parked."""
    outcome = ingest.store(connection, ROUTE, GENERIC, deliveries)
    return ingest.park(connection, ROUTE, deliveries, outcome)


def waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        row = connection.execute(query).fetchone()
    return bool(row and row[0])


def to_acknowledge(ledger: Ledger, parked: Sequence[Delivery], *all_of_them: Delivery) -> set[str]:
    """The handles that a worker acknowledges now: what was not parked, and what is ready."""
    handles = {each.handle for each in all_of_them} - {each.handle for each in parked}
    with ledger.transaction() as tx:
        ready = ready_acks(tx.connection, "deploys", limit=100)
        forget_acks(tx.connection, [ack_id for ack_id, _ in ready])
    return handles | {handle for _, handle in ready}


@pytest.mark.parametrize(
    "how", ["UPDATE todos SET state = 'done'", "UPDATE todos SET state = 'failed'", "DELETE FROM todos"]
)
@pytest.mark.parametrize("isolation", psycopg.IsolationLevel)
def test_a_todo_that_ends_while_its_entry_is_noted_is_never_stranded(
    ledger: Ledger, database_url: str, how: str, isolation: psycopg.IsolationLevel
) -> None:
    # Given a todo, and a second entry of the same key that is being stored: noted, and not committed
    first, second = delivery("1-1"), delivery("2-2")
    with ledger.transaction() as tx:
        store(tx.connection, first)
    ended = threading.Event()

    def end() -> None:
        with psycopg.connect(database_url) as connection:
            connection.isolation_level = isolation
            connection.execute("SELECT count(*) FROM todos")
            started.set()
            for _ in range(5):
                try:
                    connection.execute(how.encode())
                    connection.commit()
                except psycopg.errors.SerializationFailure:
                    # What a program that chose this level does: all of it again.
                    connection.rollback()
                else:
                    ended.set()
                    return

    started = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        with ledger.transaction() as tx:
            parked = store(tx.connection, second)
            ending = thread.submit(end)
            assert started.wait(10)
            eventually(lambda: waits_for_a_lock(database_url), what="the end waits for the note")
        ending.result(10)
    assert ended.is_set()
    assert to_acknowledge(ledger, parked, second) == {"1-1", "2-2"}


@pytest.mark.parametrize("commits", [True, False])
def test_a_todo_that_is_being_ended_as_its_entry_comes_to_be_noted_is_never_stranded(
    ledger: Ledger, database_url: str, commits: bool
) -> None:
    first, second = delivery("1-1"), delivery("2-2")
    with ledger.transaction() as tx:
        store(tx.connection, first)

    def note() -> Sequence[Delivery]:
        with ledger.transaction() as tx:
            return store(tx.connection, second)

    with psycopg.connect(database_url) as ending, ThreadPoolExecutor(1) as thread:
        ending.execute("UPDATE todos SET state = 'done'")
        noting = thread.submit(note)
        eventually(lambda: waits_for_a_lock(database_url), what="the note waits for the end")
        ending.commit() if commits else ending.rollback()
        parked = noting.result(10)
    if commits:
        assert to_acknowledge(ledger, parked, second) == {"1-1", "2-2"}
    else:
        assert [each.handle for each in parked] == ["2-2"]
        assert to_acknowledge(ledger, parked, second) == set()
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("UPDATE todos SET state = 'done'")
        assert to_acknowledge(ledger, parked, second) == {"1-1", "2-2"}


def test_an_end_whose_snapshot_is_older_than_the_note_does_not_strand_it(ledger: Ledger, database_url: str) -> None:
    first, second = delivery("1-1"), delivery("2-2")
    with ledger.transaction() as tx:
        store(tx.connection, first)
    with psycopg.connect(database_url) as ending:
        ending.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        # Given a program that has looked at its todo, and a second entry that is noted after that
        ending.execute("SELECT count(*) FROM todos")
        with ledger.transaction() as tx:
            parked = store(tx.connection, second)
        assert [each.handle for each in parked] == ["2-2"]
        # When it ends the todo, again where PostgreSQL wants it to
        for _ in range(2):
            try:
                ending.execute("UPDATE todos SET state = 'done'")
                ending.commit()
                break
            except psycopg.errors.SerializationFailure:
                ending.rollback()
    assert to_acknowledge(ledger, parked, second) == {"1-1", "2-2"}


def test_a_note_that_is_rolled_back_leaves_nothing(ledger: Ledger, database_url: str) -> None:
    class Cut(Exception):
        pass

    def cut_off() -> None:
        with ledger.transaction() as tx:
            assert len(store(tx.connection, delivery("1-1"))) == 1
            raise Cut

    with pytest.raises(Cut):
        cut_off()
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT 1 FROM pending_acks").fetchall() == []


def test_two_at_once_that_look_for_what_is_ready_get_each_but_once(ledger: Ledger, database_url: str) -> None:
    with ledger.transaction() as tx:
        store(tx.connection, *(delivery(f"{number}-0", f"{number}-0") for number in range(10)))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE todos SET state = 'done'")
    with ledger.transaction() as one, ledger.transaction() as two:
        first = ready_acks(one.connection, "deploys", limit=6)
        second = ready_acks(two.connection, "deploys", limit=6)
        assert (len(first), len(second)) == (6, 4)
        assert not {handle for _, handle in first} & {handle for _, handle in second}


# Where it cannot be


@pytest.mark.parametrize(
    "table",
    ['type = "redis-list"\nlist = "jobs"', 'type = "redis-pubsub"\nchannel = "jobs"\nloss_tolerant = true'],
    ids=["list", "pubsub"],
)
def test_it_is_refused_for_what_cannot_wait_and_the_refusal_names_the_key(
    monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setenv("JOBS_URL", "redis://127.0.0.1:1/0")
    text = f'[adapters.jobs]\n{table}\nurl = "${{JOBS_URL}}"\nqueue = "q"\nack = "%s"\n'
    with pytest.raises(ConfigError, match=r"adapters\.jobs\.ack.*streams"):
        read_adapters(text % "complete")
    assert len(read_adapters(text % "store")) == 1


# delete = true


def test_delete_removes_from_the_stream_what_was_stored_and_nothing_else(line: Line) -> None:
    line.options = {"delete": True, "body": "data"}
    with line.running() as worker:
        line.publish(20, data="{}")
        line.publish(1, other="a dead letter is stored as well")
        eventually(lambda: line.stored() == 20 and line.client.xlen("deploys") == 0, what="they are removed")
        assert line.pending() == []
        assert line.rows("SELECT count(*) FROM dead_letters") == [(1,)]

        with psycopg.connect(line.database_url) as locking:
            locking.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
            sent = line.publish(20, data="{}")
            eventually(lambda: waits_for_a_lock(line.database_url), what="an insert waits")
            remains(
                lambda: line.client.xlen("deploys") == 20, seconds=1, what="something is removed before it is stored"
            )
            worker.kill_all()
        assert [entry_id.decode() for entry_id, _ in line.client.xrange("deploys")] == sent
    with line.running():
        eventually(lambda: line.stored() == 40 and line.client.xlen("deploys") == 0, within=20, what="they are removed")


def test_delete_waits_for_the_todos_end_where_the_acknowledgement_does(line: Line) -> None:
    line.options |= {"delete": True}
    with line.running():
        line.publish(3)
        line.wait_parked(3)
        assert line.client.xlen("deploys") == 3
        line.end()
        line.wait_acknowledged()
        assert line.client.xlen("deploys") == 0


def test_without_delete_the_stream_keeps_all(line: Line) -> None:
    line.options = {}
    with line.running():
        line.publish(5)
        eventually(lambda: line.stored() == 5 and not line.pending(), what="they are acknowledged")
        assert line.client.xlen("deploys") == 5


# What it costs


def test_twenty_thousand_parked_entries_cost_redis_next_to_nothing(line: Line) -> None:
    line.options["claim_idle"] = "2s"
    with line.running(processes=2):
        line.publish(20_000)
        eventually(lambda: line.parked() == 20_000, within=60, every=0.3, what="they are parked")
        line.client.config_resetstat()
        remains(lambda: True, seconds=3, what="")
        stats = {name.removeprefix("cmdstat_"): about for name, about in line.client.info("commandstats").items()}
        used = sum(about["usec"] for name, about in stats.items() if name not in ("config|resetstat", "info"))
        assert used < 100_000, stats
        # Nothing looks at the parked ones: no entry of theirs is claimed, read or listed.
        assert "xclaim" not in stats, stats
        assert "xautoclaim" not in stats, stats
        assert "xrange" not in stats, stats
        assert stats.get("xpending", {"usec": 0})["usec"] < 5_000, stats
        assert sum(about["calls"] for name, about in stats.items() if name.startswith("x")) < 60, stats


def test_the_adapter_itself_never_takes_over_what_is_parked(redis_url: str, redis_client: "redis.Redis") -> None:
    options: dict[str, Any] = {
        "url": redis_url,
        "stream": "deploys",
        "queue": "q",
        "ack": "complete",
        "claim_idle": "100ms",
    }
    with closing(RedisStream("deploys", **options)) as adapter:
        redis_client.xadd("deploys", {"a": "1"})
        got = adapter.receive(10, 10**6, timedelta(seconds=1))
        adapter.park(got)
        batch = Batch(ROUTE, got)
        assert len(batch.deliveries) == 1
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert adapter.left_behind(10, 10**6) == []
        [row] = redis_client.xpending_range("deploys", "switchboard", "-", "+", 10)
        assert (row["consumer"], row["times_delivered"]) == (PARKED.encode(), 1)
        adapter.acknowledge(got)
        assert redis_client.xpending("deploys", "switchboard")["pending"] == 0
