"""The group, the stream or the whole Redis is emptied under a running worker: it goes on, once each."""

from collections.abc import Callable
from pathlib import Path

import pytest
from line import Line, remains, said
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer

Empty = Callable[[Line], None]


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    return Line(tmp_path, database_url, redis_url)


def destroy_group(line: Line) -> None:
    with line.source() as source:
        source.xgroup_destroy("line", "switchboard")


def delete_stream(line: Line) -> None:
    with line.source() as source:
        source.delete("line")


def flush_all(line: Line) -> None:
    with line.source() as source:
        source.flushall()


@pytest.mark.parametrize("empty", [destroy_group, delete_stream, flush_all])
def test_emptied_while_it_waits_for_more(line: Line, empty: Empty) -> None:
    with line.running() as worker:
        line.publish(50)
        line.settle(worker)
        empty(line)
        line.publish(50)
        line.settle(worker)
        assert_quiet(worker)


@pytest.mark.parametrize("empty", [destroy_group, delete_stream, flush_all])
def test_emptied_while_a_batch_is_in_the_store(line: Line, empty: Empty) -> None:
    with line.running() as worker:
        with line.locked():
            line.publish(40)
            eventually(lambda: line.group().get("lag") == 0, what="all of it is read")
            line.wait_blocked()
            empty(line)
            line.publish(40)
        line.settle(worker)
        assert_quiet(worker)


def test_the_group_is_destroyed_while_the_ledger_is_away_and_a_batch_is_held(
    tmp_path: Path, own_postgres: PostgresServer, redis_url: str
) -> None:
    # A short claim_idle: what is held is soon kept claimed, in a group that is no more.
    line = Line(tmp_path, own_postgres.url, redis_url, options={"claim_idle": "2s"})
    with line.running() as worker:
        with line.locked():
            line.publish(40)
            eventually(lambda: line.group().get("lag") == 0, what="all of it is read")
            line.wait_blocked()
            own_postgres.kill()
        said(worker, "unavailable")
        destroy_group(line)
        line.publish(40)
        # Longer than claim_idle and than one probe, so that the batch has to be kept claimed meanwhile.
        remains(lambda: bool(worker.pids), seconds=6, what="the worker has ended")
        own_postgres.start()
        line.settle(worker)
        assert_quiet(worker)


def test_the_group_is_destroyed_again_and_again_under_load(line: Line) -> None:
    with line.running(processes=2) as worker:
        line.slow_down()
        for _ in range(5):
            before = line.stored()
            line.publish(400)
            line.wait_stored(before + 1)
            destroy_group(line)
        line.settle(worker, within=40)
        assert_quiet(worker)


def assert_quiet(worker: Worker) -> None:
    assert "Traceback" not in worker.output, worker.output
    assert worker.output.count("\n") < 40, worker.output
