"""The source or PostgreSQL goes away and comes back: no crash, no loss, little said, little used; it goes on by itself.

Dramatiq's own transport is another server here: what Dramatiq says when that one is away is not ours.
"""

import time
from pathlib import Path

import pytest
from line import Line, calm_outage, group_of, said
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer, ValkeyServer

#: Seconds from SIGTERM to the end while PostgreSQL is frozen.
SOON = 10


@pytest.fixture
def source_line(tmp_path: Path, database_url: str, own_valkey: ValkeyServer, redis_url: str) -> Line:
    """Its source is a server of its own."""
    return Line(tmp_path, database_url, own_valkey.url, env={"SWITCHBOARD_BROKER_URL": redis_url})


@pytest.fixture
def ledger_line(tmp_path: Path, own_postgres: PostgresServer, redis_url: str) -> Line:
    """Its ledger is a server of its own."""
    return Line(tmp_path, own_postgres.url, redis_url, options={"batch": 100})


def test_the_source_is_away_at_the_start(source_line: Line, own_valkey: ValkeyServer) -> None:
    source_line.publish(50)
    own_valkey.kill()
    with source_line.running() as worker:
        with calm_outage(worker, seconds=5):
            said(worker, "unavailable")
        own_valkey.start()
        source_line.publish(50)
        source_line.settle(worker)


def test_the_source_goes_away_midway_and_comes_back(source_line: Line, own_valkey: ValkeyServer) -> None:
    with source_line.running() as worker:
        with source_line.locked():
            source_line.publish(50)
            source_line.wait_blocked()
            read = len(source_line.pending())
            own_valkey.kill()
        # What was read is stored while the source is away; its acknowledgement has to wait.
        eventually(lambda: source_line.stored() == read, what="what was read is stored")
        with calm_outage(worker):
            pass
        own_valkey.start()
        assert len(source_line.pending()) >= read
        source_line.publish(50)
        source_line.settle(worker)
        assert source_line.attempts() == 100


def test_the_source_freezes_midway_and_goes_on(source_line: Line, own_valkey: ValkeyServer) -> None:
    with source_line.running() as worker:
        source_line.publish(50)
        source_line.settle(worker)
        source_line.publish(500)
        with calm_outage(worker, seconds=8):
            own_valkey.suspend()
        own_valkey.resume()
        source_line.publish(50)
        source_line.settle(worker)


def test_postgresql_is_killed_midway_and_started_again(ledger_line: Line, own_postgres: PostgresServer) -> None:
    with ledger_line.running() as worker:
        ledger_line.slow_down()
        ledger_line.publish(2_000)
        ledger_line.wait_stored(1)
        with calm_outage(worker):
            own_postgres.kill()
            said(worker, "unavailable")
            ledger_line.publish(200)
        # Reading has stopped: no more is claimed than may be in flight.
        assert len(ledger_line.pending()) <= 300
        own_postgres.start()
        ledger_line.settle(worker)


def test_postgresql_freezes_midway_and_goes_on(ledger_line: Line, own_postgres: PostgresServer) -> None:
    with ledger_line.running() as worker:
        ledger_line.slow_down()
        ledger_line.publish(2_000)
        ledger_line.wait_stored(1)
        with calm_outage(worker, seconds=8):
            own_postgres.suspend()
        own_postgres.resume()
        ledger_line.settle(worker, within=60)


def test_connections_to_postgresql_are_ended_again_and_again_under_load(ledger_line: Line) -> None:
    end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'switchboard'"
    with ledger_line.running() as worker:
        ledger_line.slow_down()
        pids = worker.pids
        for _ in range(5):
            before = ledger_line.stored()
            ledger_line.publish(600)
            ledger_line.wait_stored(before + 1)
            ledger_line.rows(end_all)
        ledger_line.settle(worker, within=40)
        assert worker.pids == pids


def test_sigterm_while_postgresql_is_frozen_in_the_middle_of_an_insert(
    ledger_line: Line, own_postgres: PostgresServer
) -> None:
    with ledger_line.running() as worker:
        with ledger_line.locked():
            ledger_line.publish(300)
            ledger_line.wait_blocked()
            own_postgres.suspend()
            try:
                ends_soon(worker)
            finally:
                own_postgres.resume()
        worker.start()
        worker.wait_ready()
        ledger_line.settle(worker)


def test_sigterm_while_postgresql_is_frozen_and_known_to_be_away(
    ledger_line: Line, own_postgres: PostgresServer
) -> None:
    with ledger_line.running() as worker:
        ledger_line.publish(300)
        ledger_line.settle(worker)
        own_postgres.suspend()
        try:
            said(worker, "unavailable")
            ledger_line.publish(300)
            ends_soon(worker)
        finally:
            own_postgres.resume()
        worker.start()
        worker.wait_ready()
        ledger_line.settle(worker)


def ends_soon(worker: Worker) -> None:
    began = time.monotonic()
    assert worker.terminate(within=40) == 0, worker.output
    took = time.monotonic() - began
    assert took < SOON, f"{took:.1f} s\n{worker.output}"
    assert group_of(worker) == []
