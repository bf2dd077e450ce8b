"""The reaper takes back what dead workers left, in the ledger and at each source, and looks after the pending index."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis
from pooler import Pooler
from psycopg import sql
from waiting import eventually

from switchboard.embedded import PostgresServer
from switchboard.errors import LedgerError, LedgerUnavailable
from switchboard.ledger import (
    Holder,
    Ledger,
    cleanup_holders,
    complete_todo,
    count_expired,
    inspect_pending_index,
    list_upkeep,
    look_after_pending_index,
    migrate,
    rebuild_pending_index,
    take_upkeep,
)
from switchboard.process_name import process_name
from switchboard.pull import RedisList, RedisStream
from switchboard.reaper import Reaped, reap, requeue_expired

#: Milliseconds an entry shows as its idle time once anyone may claim it.
FREED = 3_600_000


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def database(ledger: Ledger, database_url: str) -> Iterator["psycopg.Connection"]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def claimed(
    database: "psycopg.Connection", count: int, *, lease: str, attempt: int = 1, owner: str | None = "w"
) -> None:
    """Todos held by somebody, or waiting for their retry where `owner` is None, with `lease` from now."""
    database.execute(
        "INSERT INTO todos (queue, title, state, owner, lease_expires_at, attempt) "
        "SELECT 'q', 't', 'claimed', %s, now() + %s::interval, %s FROM generate_series(1, %s)",
        (owner, lease, attempt, count),
    )


def states(database: "psycopg.Connection") -> dict[str, int]:
    return dict(database.execute("SELECT state, count(*)::int FROM todos GROUP BY state").fetchall())


# Leases


def test_what_ran_out_is_pending_again_or_failed_in_its_last_attempt(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    claimed(database, 3, lease="-1 second")
    claimed(database, 2, lease="-1 second", owner=None)
    claimed(database, 1, lease="-1 second", attempt=5)
    claimed(database, 4, lease="1 hour")
    with ledger.transaction() as tx:
        assert count_expired(tx.connection) == count_expired(tx.connection, queue="q")
        assert (count_expired(tx.connection).pending, count_expired(tx.connection).failed) == (5, 1)
    assert reap(ledger, []) == Reaped(pending=5, failed=1)
    assert states(database) == {"pending": 5, "failed": 1, "claimed": 4}


@pytest.mark.parametrize("owner", ["w", None], ids=["held", "waiting for their retry"])
def test_ten_thousand_that_are_not_ready_do_not_keep_one_that_is(
    ledger: Ledger, database: "psycopg.Connection", owner: str | None
) -> None:
    claimed(database, 10_000, lease="1 hour", owner=owner)
    claimed(database, 1, lease="-1 second", owner=owner)
    assert reap(ledger, []) == Reaped(pending=1)
    assert states(database) == {"pending": 1, "claimed": 10_000}


def test_ten_thousand_that_somebody_has_locked_do_not_keep_one_that_is_free(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    claimed(database, 10_000, lease="-2 seconds")
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM todos FOR UPDATE")
        claimed(database, 1, lease="-1 second")
        assert reap(ledger, []) == Reaped(pending=1)


def test_more_than_one_step_goes_in_one_run(ledger: Ledger, database: "psycopg.Connection") -> None:
    claimed(database, 2_500, lease="-1 second")
    assert reap(ledger, []) == Reaped(pending=2_500)


def test_a_completion_between_the_look_and_the_write_stands(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    claimed(database, 2, lease="-1 second")
    (first, _) = [row[0] for row in database.execute("SELECT id FROM todos ORDER BY id")]
    # Given a worker that completes a todo whose lease has just run out, and has not committed yet
    with ledger.transaction() as tx:
        complete_todo(tx.connection, first, "w", result={"done": True})
        # When the reaper comes by, which sees the row as it was
        assert reap(ledger, []) == Reaped(pending=1)
    # Then the completion stands
    assert database.execute("SELECT state, result FROM todos WHERE id = %s", (first,)).fetchone() == (
        "done",
        {"done": True},
    )
    assert reap(ledger, []) == Reaped()
    assert states(database) == {"done": 1, "pending": 1}


def test_of_two_at_once_the_second_leaves_it_to_the_first(ledger: Ledger, database: "psycopg.Connection") -> None:
    claimed(database, 1, lease="-1 second")
    with ledger.transaction() as first:
        assert take_upkeep(first.connection, "reap")
        assert reap(ledger, []) is None
    assert states(database) == {"claimed": 1}
    assert reap(ledger, []) == Reaped(pending=1)


def test_a_run_is_recorded_with_its_time_and_counts(ledger: Ledger, database: "psycopg.Connection") -> None:
    claimed(database, 2, lease="-1 second")
    reap(ledger, [])
    with ledger.transaction() as tx:
        (row,) = list_upkeep(tx.connection)
    assert (row.job, row.counts["pending"], row.counts["failed"]) == ("reap", 2, 0)
    assert 0 <= row.last_duration_seconds < 60
    assert database.execute("SELECT now() - last_succeeded_at < '1 minute' FROM upkeep").fetchone() == (True,)


def test_one_queue_alone_is_requeued_where_that_is_asked(ledger: Ledger, database: "psycopg.Connection") -> None:
    claimed(database, 1, lease="-1 second")
    assert requeue_expired(ledger, queue="another").pending == 0
    assert requeue_expired(ledger, queue="q").pending == 1


# Sources


def dead_worker() -> str:
    """The name of a process of this host that has ended."""
    code = "from switchboard.process_name import process_name; print(process_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def stream(redis_url: str) -> Iterator[RedisStream]:
    with closing(RedisStream("deploys", url=redis_url, stream="deploys", queue="q")) as adapter:
        yield adapter


def pending_with(redis_client: "redis.Redis", consumer: str) -> list[int]:
    """Milliseconds that each entry pending with that consumer has been idle."""
    rows = redis_client.xpending_range("deploys", "switchboard", "-", "+", 100, consumer)
    return [int(row["time_since_delivered"]) for row in rows]


def consumers(redis_client: "redis.Redis") -> set[str]:
    return {row["name"].decode() for row in redis_client.xinfo_consumers("deploys", "switchboard")}


def test_what_a_dead_worker_holds_of_a_stream_anyone_may_take_at_once(
    ledger: Ledger, stream: RedisStream, redis_client: "redis.Redis"
) -> None:
    # Given a worker that died with two entries in hand, one that died with none, and one elsewhere that lives
    dead, empty, elsewhere = dead_worker(), dead_worker(), "another-host/1/2/3"
    redis_client.xgroup_create("deploys", "switchboard", id="0", mkstream=True)
    for number in range(5):
        redis_client.xadd("deploys", {"n": number})
    for name, count in ((dead, 2), (elsewhere, 1), (process_name(), 1), ("switchboard.stored", 1)):
        redis_client.xreadgroup("switchboard", name, {"deploys": ">"}, count=count)
    redis_client.xgroup_createconsumer("deploys", "switchboard", empty)
    # When the reaper runs
    assert reap(ledger, [stream]) == Reaped(deliveries=2, consumers=1)
    # Then its two entries are as idle as can be, and nobody else's
    assert all(idle >= FREED for idle in pending_with(redis_client, dead))
    for name in (elsewhere, process_name(), "switchboard.stored"):
        assert [idle < FREED for idle in pending_with(redis_client, name)] == [True], name
    assert consumers(redis_client) == {dead, elsewhere, process_name(), "switchboard.stored"}
    # And a worker on another host, to which a silent one is dead only after a minute, can take them
    claimed = redis_client.xclaim("deploys", "switchboard", "other", 60_000, [b"0-0", *ids(redis_client, dead)])
    assert len(claimed) == 2
    # And once they are taken, the dead one is forgotten; it counts no delivery twice
    assert reap(ledger, [stream]) == Reaped(consumers=1)
    assert dead not in consumers(redis_client)


def ids(redis_client: "redis.Redis", consumer: str) -> list[Any]:
    rows = redis_client.xpending_range("deploys", "switchboard", "-", "+", 100, consumer)
    return [row["message_id"] for row in rows]


def test_freeing_counts_as_no_try(ledger: Ledger, stream: RedisStream, redis_client: "redis.Redis") -> None:
    dead = dead_worker()
    redis_client.xgroup_create("deploys", "switchboard", id="0", mkstream=True)
    redis_client.xadd("deploys", {"n": 1})
    redis_client.xreadgroup("switchboard", dead, {"deploys": ">"})
    reap(ledger, [stream])
    (row,) = redis_client.xpending_range("deploys", "switchboard", "-", "+", 10, dead)
    assert row["times_delivered"] == 1


def test_a_stream_that_nobody_has_read_has_nothing_to_free(ledger: Ledger, stream: RedisStream) -> None:
    assert reap(ledger, [stream]) == Reaped()


def test_what_a_dead_worker_holds_of_a_list_goes_back_in_its_order(
    ledger: Ledger, redis_url: str, redis_client: "redis.Redis"
) -> None:
    # Given a worker that died with the two oldest of three messages in hand
    dead = dead_worker()
    redis_client.lpush("jobs", "first", "second", "third")
    processing = f"{{jobs}}:switchboard:processing:{dead}"
    redis_client.hset("{jobs}:switchboard:workers", dead, "1")
    for _ in range(2):
        redis_client.lmove("jobs", processing, "RIGHT", "LEFT")
    with closing(RedisList("jobs", url=redis_url, list="jobs", queue="q")) as adapter:
        assert reap(ledger, [adapter]) == Reaped(deliveries=2)
        assert redis_client.lrange("jobs", 0, -1) == [b"third", b"second", b"first"]
        # And, not seen for long and empty, it is forgotten in the next run
        assert reap(ledger, [adapter]) == Reaped(consumers=1)
    assert redis_client.hlen("{jobs}:switchboard:workers") == 0


def test_a_source_that_gives_no_answer_hinders_nothing_else(
    ledger: Ledger, database: "psycopg.Connection", stream: RedisStream, redis_client: "redis.Redis",
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    claimed(database, 1, lease="-1 second")
    redis_client.xgroup_create("deploys", "switchboard", id="0", mkstream=True)
    redis_client.xgroup_createconsumer("deploys", "switchboard", dead_worker())
    with closing(RedisStream("away", url="redis://:hush@127.0.0.1:1/0", stream="s", queue="q")) as away:
        assert reap(ledger, [away, stream]) == Reaped(pending=1, consumers=1, unreachable=1)
    assert "adapter away: its source is not reaped" in caplog.text
    assert "hush" not in caplog.text


# The pending index


def index_size(database: "psycopg.Connection") -> int:
    row = database.execute("SELECT pg_relation_size('idx_todos_pending')").fetchone()
    assert row
    return int(row[0])


def swell(database: "psycopg.Connection") -> None:
    """Makes the index large, and leaves almost nothing in it."""
    database.execute("ALTER TABLE todos SET (autovacuum_enabled = off)")
    database.execute(
        "INSERT INTO todos (queue, title, created_at) "
        "SELECT repeat('q', 200), 't', now() - make_interval(secs => n) FROM generate_series(1, 100000) n"
    )
    database.execute("UPDATE todos SET state = 'done', completed_at = now() WHERE id > 10")
    database.execute("ANALYZE todos")


def test_a_bloated_index_is_rebuilt_once_a_day_and_a_dense_one_never(
    ledger: Ledger, database: "psycopg.Connection"
) -> None:
    swell(database)
    before = index_size(database)
    assert before > 16 * 1024**2
    assert reap(ledger, []) == Reaped(rebuilt=1)
    assert index_size(database) < before / 100
    # What is large because it is full is left alone
    database.execute("TRUNCATE todos")
    database.execute("UPDATE upkeep SET last_succeeded_at = now() - interval '2 days'")
    database.execute(
        "INSERT INTO todos (queue, title, created_at) "
        "SELECT repeat('q', 200), 't', now() - make_interval(secs => n) FROM generate_series(1, 100000) n"
    )
    assert reap(ledger, []) == Reaped(), "the statistics know of no entry: it is counted"
    # And one whose rebuild was tried less than a day ago as well
    database.execute("UPDATE todos SET state = 'done', completed_at = now() WHERE id > 10")
    database.execute("UPDATE upkeep SET last_succeeded_at = now() - interval '23 hours' WHERE job <> 'reap'")
    assert reap(ledger, []) == Reaped()


LEFTOVERS = "SELECT count(*) FROM pg_index WHERE indrelid = 'todos'::regclass AND NOT indisvalid"


def break_off_a_rebuild(database_url: str) -> None:
    """A rebuild that waits for a transaction, and is cancelled."""
    with psycopg.connect(database_url) as writer, psycopg.connect(database_url, autocommit=True) as rebuilding:
        writer.execute("INSERT INTO todos (queue, title) VALUES ('q', 't')")
        rebuilding.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            rebuilding.execute("REINDEX INDEX CONCURRENTLY idx_todos_pending")


def test_what_a_rebuild_that_was_broken_off_left_is_dropped(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    break_off_a_rebuild(database_url)
    assert database.execute(LEFTOVERS).fetchone() == (1,)
    rebuild_pending_index(ledger)
    assert database.execute(LEFTOVERS).fetchone() == (0,)


def test_what_a_rebuild_left_is_dropped_by_the_next_run_though_the_index_is_dense(
    ledger: Ledger, database: "psycopg.Connection", database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    break_off_a_rebuild(database_url)
    break_off_a_rebuild(database_url)
    assert database.execute(LEFTOVERS).fetchone() == (2,)
    assert not look_after_pending_index(ledger)
    assert database.execute(LEFTOVERS).fetchone() == (0,)
    assert "dropped idx_todos_pending_ccnew" in caplog.text
    caplog.clear()
    assert not look_after_pending_index(ledger)
    assert not caplog.records


def test_what_a_rebuild_is_still_building_is_left_alone(
    ledger: Ledger, database: "psycopg.Connection", database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        psycopg.connect(database_url) as writer,
        psycopg.connect(database_url, autocommit=True) as rebuilding,
        ThreadPoolExecutor(1) as thread,
    ):
        writer.execute("INSERT INTO todos (queue, title) VALUES ('q', 't')")
        rebuilt = thread.submit(rebuilding.execute, "REINDEX INDEX CONCURRENTLY idx_todos_pending")
        try:
            eventually(lambda: database.execute(LEFTOVERS).fetchone() == (1,), what="it is being built")
            assert not look_after_pending_index(ledger)
            assert database.execute(LEFTOVERS).fetchone() == (1,)
        finally:
            writer.commit()
        rebuilt.result(30)
    assert not caplog.records
    assert database.execute(LEFTOVERS).fetchone() == (0,)


def test_whoever_keeps_dead_rows_from_being_cleaned_up_is_named(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    with ledger.transaction() as tx:
        assert cleanup_holders(tx.connection, older=timedelta(0)) == []
    with psycopg.connect(database_url, application_name="monthly report") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM todos")

        def holders() -> list[Holder]:
            with ledger.transaction() as tx:
                return cleanup_holders(tx.connection, older=timedelta(milliseconds=1))

        (holder,) = eventually(holders)
        assert (holder.pid, holder.who) == (reader.info.backend_pid, "monthly report")
        with ledger.transaction() as tx:
            assert cleanup_holders(tx.connection, older=timedelta(minutes=5)) == []


def test_the_warning_names_who_holds_cleaning_up_and_nothing_is_rebuilt_meanwhile(
    ledger: Ledger, database: "psycopg.Connection", database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    swell(database)
    with psycopg.connect(database_url, application_name="monthly report") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM todos")
        assert not look_after_pending_index(ledger, held_too_long=timedelta(milliseconds=1))
        pid = reader.info.backend_pid
    (warning,) = [record.getMessage() for record in caplog.records if "has been open" in record.getMessage()]
    assert f"a transaction of monthly report (pid {pid}, idle in transaction)" in warning
    assert look_after_pending_index(ledger)


def test_what_cannot_be_looked_after_is_a_warning_and_the_run_is_done_all_the_same(
    ledger: Ledger, database: "psycopg.Connection", caplog: pytest.LogCaptureFixture
) -> None:
    claimed(database, 1, lease="-1 second")
    database.execute("DROP INDEX idx_todos_pending")
    assert reap(ledger, []) == Reaped(pending=1)
    assert "idx_todos_pending is not looked after" in caplog.text
    with ledger.transaction() as tx:
        assert [row.job for row in list_upkeep(tx.connection)] == ["reap"]


def test_a_rebuild_that_failed_is_not_tried_again_at_once(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    swell(database)
    with psycopg.connect(database_url) as other:
        other.execute("LOCK TABLE todos IN SHARE UPDATE EXCLUSIVE MODE")
        assert not look_after_pending_index(ledger)
    assert not look_after_pending_index(ledger)


def test_no_rebuild_sets_limits_in_the_sessions_of_a_pooler(own_postgres: PostgresServer) -> None:
    with (
        Pooler(own_postgres.port) as pooler,
        closing(Ledger(f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres")) as pooled,
    ):
        migrate(pooled)
        with pytest.raises(LedgerError, match="SWITCHBOARD_LISTEN_URL"):
            rebuild_pending_index(pooled)


def test_the_servers_limits_of_idle_transactions_do_not_end_a_run(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    """The reaper's lock is held, idle, while its steps commit beside it."""
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    limit = sql.SQL("ALTER DATABASE {} SET idle_in_transaction_session_timeout = '200ms'").format(
        sql.Identifier(str(name))
    )
    database.execute(limit)
    claimed(database, 3_000, lease="-1 second")
    # A source that takes its time to say nothing.
    with socket.create_server(("127.0.0.1", 0)) as mute, closing(Ledger(database_url)) as limited:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        with closing(RedisStream("mute", url=url, stream="s", queue="q")) as adapter:
            assert reap(limited, [adapter]) == Reaped(pending=3_000, unreachable=1)


def test_a_process_that_is_stopping_ends_its_run_between_two_steps(
    ledger: Ledger, database: "psycopg.Connection", stream: RedisStream
) -> None:
    claimed(database, 5_000, lease="-1 second")
    ledger.open()
    ledger.stop()
    with pytest.raises(LedgerUnavailable, match="stopping"):
        reap(ledger, [stream])
    assert states(database) == {"pending": 1_000, "claimed": 4_000}
    with closing(Ledger(ledger_url(database))) as other:
        assert reap(other, []) == Reaped(pending=4_000)


def ledger_url(database: "psycopg.Connection") -> str:
    return database.info.dsn


def test_dead_rows_are_counted(ledger: Ledger, database: "psycopg.Connection") -> None:
    database.execute("ALTER TABLE todos SET (autovacuum_enabled = off)")
    claimed(database, 100, lease="1 hour")
    database.execute("UPDATE todos SET state = 'done'")

    def dead_rows() -> int:
        with ledger.transaction() as tx:
            return inspect_pending_index(tx.connection).dead_rows

    assert eventually(lambda: dead_rows() == 100, within=30)


def test_a_rebuild_that_cannot_begin_says_so_and_leaves_the_index(
    ledger: Ledger, database: "psycopg.Connection", database_url: str
) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("LOCK TABLE todos IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(LedgerUnavailable, match="rebuild idx_todos_pending"):
            rebuild_pending_index(ledger)
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'idx_todos_pending'::regclass"
    assert database.execute(valid).fetchone() == (True,)


def test_a_run_that_is_killed_leaves_what_it_had_committed(ledger: Ledger, database_url: str) -> None:
    """Requeuing is committed in steps: a reaper that dies midway has done whole steps, and its lock is free."""
    with psycopg.connect(database_url, autocommit=True) as database:
        claimed(database, 5_000, lease="-1 second")
        code = "import os; from switchboard.cli import main; main()"
        child = subprocess.Popen(
            [sys.executable, "-c", code, "reap"], env={**os.environ, "DATABASE_URL": database_url}, cwd="/"
        )
        try:
            eventually(lambda: states(database).get("pending", 0) > 0, within=60, every=0.001)
        finally:
            child.kill()
            child.wait()
        # A commit that was under way is through, or never will be.
        at_work = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
        eventually(lambda: database.execute(at_work).fetchone() == (1,), what="nobody but us is at work")
        done = states(database)
        assert done.get("pending", 0) % 1_000 == 0
        left = done.get("claimed", 0)
        assert eventually(lambda: reap(ledger, [])) == Reaped(pending=left)
