"""Table ``consumers``: who reads each adapter, as its own functions and real workers write it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from waiting import eventually
from worker import Worker

from switchboard.brokers.adapter_consumer import AdapterConsumer
from switchboard.brokers.gate import IngestGate
from switchboard.ledger import (
    ConsumerRow,
    Ledger,
    forget_consumers,
    list_consumers,
    migrate,
    note_poll,
    set_adapter_enabled,
)
from switchboard.process_name import process_name
from switchboard.pull import RedisStream
from switchboard.registration import register_adapter

SECOND = timedelta(seconds=1)

UPDATES = (
    b"SELECT n_tup_upd, n_tup_hot_upd, pg_relation_size(relid) FROM pg_stat_user_tables WHERE relname = 'consumers'"
)

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_URL}"
stream = "deploys"
queue = "deploys"

[adapters.news]
type = "redis-pubsub"
url = "${DEPLOYS_URL}"
channel = "news"
queue = "news"
loss_tolerant = true
"""


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


def note(ledger: Ledger, process: str, adapter: str = "deploys", **more: object) -> None:
    with ledger.transaction() as tx:
        note_poll(tx.connection, process=process, adapter=adapter, **{"polled_ago": SECOND, **more})  # type: ignore[arg-type]


def consumers(ledger: Ledger) -> list[ConsumerRow]:
    with ledger.transaction() as tx:
        return list_consumers(tx.connection)


def test_a_note_tells_its_times_by_the_databases_clock(ledger: Ledger) -> None:
    note(ledger, "one", polled_ago=60 * SECOND, storing_for=5 * SECOND, error=("refused", 7 * SECOND))
    [row] = consumers(ledger)
    assert (row.process, row.adapter, row.standby, row.last_error) == ("one", "deploys", False, "refused")
    assert row.polled_at is not None
    assert row.storing_since is not None
    assert row.last_error_at is not None
    assert row.seen_at - row.polled_at == 60 * SECOND
    assert row.seen_at - row.storing_since == 5 * SECOND
    assert row.seen_at - row.last_error_at == 7 * SECOND
    assert row.begun_at == row.seen_at <= row.asked_at


def test_a_later_note_keeps_when_it_began_and_the_last_error(ledger: Ledger) -> None:
    note(ledger, "one", storing_for=SECOND, standby=True, error=("refused", SECOND))
    [first] = consumers(ledger)
    note(ledger, "one", polled_ago=None)
    [row] = consumers(ledger)
    assert row.begun_at == first.begun_at < row.seen_at
    assert (row.polled_at, row.last_error, row.last_error_at) == (first.polled_at, "refused", first.last_error_at)
    assert (row.storing_since, row.standby) == (None, False)


def test_a_note_that_has_nothing_to_tell_yet_is_one_too(ledger: Ledger) -> None:
    note(ledger, "one", polled_ago=None)
    [row] = consumers(ledger)
    assert (row.polled_at, row.storing_since, row.last_error, row.last_error_at) == (None, None, None, None)


def test_notes_touch_no_index_and_do_not_make_the_table_grow(ledger: Ledger, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        for process in ("one", "two", "three"):
            note(ledger, process)
        for _ in range(300):
            note(ledger, "one")
        ledger.close()
        eventually(lambda: (admin.execute(UPDATES).fetchone() or [0])[0] == 300, what="the statistics are there")
        assert admin.execute(UPDATES).fetchone() == (300, 300, 8192)


def test_one_is_there_that_said_so_within_half_a_minute_and_whose_process_has_not_ended(
    ledger: Ledger, database_url: str
) -> None:
    host, namespace, _, _ = process_name().split("/")
    for process in (process_name(), f"{host}/{namespace}/999999999/1", "elsewhere/1/7/2", "silent/1/7/2"):
        note(ledger, process)
    with psycopg.connect(database_url) as admin:
        admin.execute("UPDATE consumers SET seen_at = now() - interval '31 seconds' WHERE process LIKE 'silent%'")
    assert {row.process for row in consumers(ledger) if row.is_there} == {process_name(), "elsewhere/1/7/2"}


def test_who_is_gone_is_forgotten_and_nobody_else(ledger: Ledger, database_url: str) -> None:
    host, namespace, _, _ = process_name().split("/")
    for process in (process_name(), f"{host}/{namespace}/999999999/1", "elsewhere/1/7/2", "silent/1/7/2"):
        note(ledger, process)
    note(ledger, f"{host}/{namespace}/999999999/1", "another")
    with psycopg.connect(database_url) as admin:
        admin.execute("UPDATE consumers SET seen_at = now() - interval '11 minutes' WHERE process LIKE 'silent%'")
    with ledger.transaction() as tx:
        assert forget_consumers(tx.connection) == 3
    assert {row.process for row in consumers(ledger)} == {process_name(), "elsewhere/1/7/2"}
    with ledger.transaction() as tx:
        assert forget_consumers(tx.connection) == 0


def test_taking_over_what_was_left_behind_is_an_answer_of_the_source(
    ledger: Ledger, redis_url: str, redis_client: Any
) -> None:
    redis_client.xgroup_create("deploys", "switchboard", mkstream=True)
    for number in range(3):
        redis_client.xadd("deploys", {"n": str(number)})
    read: Any = redis_client.xreadgroup("switchboard", "elsewhere/1/7/2", {"deploys": ">"})
    [(_, entries)] = read
    redis_client.xclaim("deploys", "switchboard", "elsewhere/1/7/2", 0, [each for each, _ in entries], idle=3_600_000)
    adapter = RedisStream("deploys", url=redis_url, stream="deploys", queue="deploys")
    with ledger.transaction() as tx:
        route = register_adapter(tx.connection, adapter)
    consumer = AdapterConsumer(adapter, route, "adapter.deploys", ledger, IngestGate(), 0.1)
    try:

        def taken_over() -> float:
            asked = time.monotonic()
            return asked if next(consumer) is not None else 0.0

        asked = eventually(taken_over, within=30, what="it is taken over")
        assert (consumer.beat.answered_at or 0.0) >= asked, "health would say that the source does not answer"
    finally:
        consumer.stop()
        consumer.close()


# Real workers


@pytest.fixture
def worker(tmp_path: Path, ledger: Ledger, database_url: str, redis_url: str) -> Iterator[Worker]:
    (tmp_path / "switchboard.toml").write_text(CONFIG)
    env = {
        "DATABASE_URL": database_url,
        "SWITCHBOARD_BROKER_URL": redis_url,
        "DEPLOYS_URL": redis_url,
        "SWITCHBOARD_CONFIG": "",
    }
    with Worker(cwd=tmp_path, env=env, processes=2) as worker:
        worker.wait_ready()
        yield worker


def of(ledger: Ledger, adapter: str) -> list[ConsumerRow]:
    return [row for row in consumers(ledger) if row.adapter == adapter]


def pid_of(row: ConsumerRow) -> int:
    return int(row.process.split("/")[2])


def test_each_process_notes_its_polls_and_one_alone_reads_pubsub(
    worker: Worker, ledger: Ledger, redis_client: "redis.Redis"
) -> None:
    def all_there() -> bool:
        stream, channel = of(ledger, "deploys"), of(ledger, "news")
        return (
            {pid_of(row) for row in stream} == {pid_of(row) for row in channel} == set(worker.pids)
            and all(row.polled_at for row in stream)
            and sorted((row.standby, row.polled_at is None) for row in channel) == [(False, False), (True, True)]
        )

    eventually(all_there, within=30, what="both processes poll the stream, one the channel")
    assert not any(row.last_error or row.storing_since for row in consumers(ledger))

    # An idle source that answers is polled; one that is switched off is not, and its consumers are still there.
    before = {row.process: row for row in of(ledger, "deploys")}
    with ledger.transaction() as tx:
        set_adapter_enabled(tx.connection, "deploys", False)
    eventually(
        lambda: all(row.seen_at > before[row.process].seen_at + 8 * SECOND for row in of(ledger, "deploys")),
        within=60,
        what="they are seen",
    )
    after = {row.process: row for row in of(ledger, "deploys")}
    news = next(row for row in of(ledger, "news") if not row.standby)
    assert news.polled_at
    assert all(row.polled_at and row.seen_at - row.polled_at > 4 * SECOND for row in after.values())
    assert news.seen_at - news.polled_at < 4 * SECOND


def test_an_error_of_the_source_is_noted_while_the_ledger_is_there(
    worker: Worker, ledger: Ledger, redis_client: "redis.Redis"
) -> None:
    eventually(lambda: len([r for r in of(ledger, "deploys") if r.polled_at]) == 2, within=30, what="both poll")
    redis_client.delete("deploys")
    redis_client.set("deploys", "a string")
    eventually(lambda: all(row.last_error for row in of(ledger, "deploys")), within=30, what="both say so")
    assert all("WRONGTYPE" in (row.last_error or "") for row in of(ledger, "deploys"))
    redis_client.delete("deploys")
    eventually(
        lambda: all(
            row.polled_at and row.last_error_at and row.polled_at > row.last_error_at for row in of(ledger, "deploys")
        ),
        within=60,
        what="both poll again",
    )


def test_a_batch_that_hangs_in_the_store_shows_since_when(
    worker: Worker, ledger: Ledger, database_url: str, redis_client: "redis.Redis"
) -> None:
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE events")
        redis_client.xadd("deploys", {"n": "1"})
        eventually(lambda: any(row.storing_since for row in of(ledger, "deploys")), within=30, what="it shows")
        first = next(row for row in of(ledger, "deploys") if row.storing_since)

        def still() -> bool:
            row = next(row for row in of(ledger, "deploys") if row.process == first.process)
            assert row.storing_since
            assert first.storing_since
            return row.seen_at > first.seen_at and abs(row.storing_since - first.storing_since) < SECOND

        eventually(still, within=30, what="the next note tells the same time")
    eventually(lambda: not any(row.storing_since for row in of(ledger, "deploys")), within=30, what="it is over")


def test_a_frozen_process_is_seen_no_more_and_its_neighbour_is(worker: Worker, ledger: Ledger) -> None:
    eventually(lambda: len([r for r in of(ledger, "deploys") if r.polled_at]) == 2, within=30, what="both poll")
    frozen = worker.pids[0]
    os.kill(frozen, signal.SIGSTOP)
    try:

        def apart() -> bool:
            seen = {pid_of(row): row.seen_at for row in of(ledger, "deploys")}
            return seen[worker.pids[1]] - seen[frozen] > 8 * SECOND

        eventually(apart, within=60, what="only one of them is seen")
    finally:
        os.kill(frozen, signal.SIGCONT)
