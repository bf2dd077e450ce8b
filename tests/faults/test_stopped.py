"""SIGTERM, as a supervisor sends it: the worker ends in a few seconds, and what it leaves is given back at once."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from line import GIVEN_BACK, Line, group_of, other_hosts_can_be_simulated
from proxy import Proxy
from waiting import eventually

#: Seconds from SIGTERM to the end of the last process.
A_FEW_SECONDS = 8

#: More than a worker stores in the second it takes to notice a signal.
LOAD = 20_000


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    return Line(tmp_path, database_url, redis_url)


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        yield proxy


def test_sigterm_under_load_ends_it_in_a_few_seconds_and_the_next_worker_goes_on(line: Line) -> None:
    with line.running(processes=2) as worker:
        line.slow_down()
        line.publish(LOAD)
        eventually(lambda: line.stored() > 0, every=0.01, what="it is at work")
        began = time.monotonic()
        assert worker.terminate(within=20) == 0, worker.output
        assert time.monotonic() - began < A_FEW_SECONDS, worker.output
        assert group_of(worker) == []
        assert "Traceback" not in worker.output, worker.output
        # Else it was not under load.
        assert line.stored() < LOAD
        worker.start()
        worker.wait_ready()
        line.settle(worker, within=90)


def test_what_a_stopped_worker_leaves_can_be_claimed_at_once_by_another_host(line: Line) -> None:
    with line.running() as worker, line.locked():
        line.publish(100)
        line.wait_blocked()
        read = len(line.pending())
        began = time.monotonic()
        assert worker.terminate(within=20) == 0, worker.output
        assert time.monotonic() - began < A_FEW_SECONDS, worker.output
        left = line.pending()
        assert len(left) == read > 0
        assert min(entry["time_since_delivered"] for entry in left) >= GIVEN_BACK
        assert {entry["times_delivered"] for entry in left} == {1}
    # claim_idle is a minute: who waits for it does not settle in time.
    host = "elsewhere" if other_hosts_can_be_simulated() else ""
    with line.running(host=host) as successor:
        line.settle(successor, within=40)


def test_sigterm_while_the_source_answers_nothing_ends_it_all_the_same(
    tmp_path: Path, database_url: str, redis_url: str, proxy: Proxy
) -> None:
    through = f"redis://{proxy.url_host}:{proxy.port}{urlsplit(redis_url).path}"
    line = Line(tmp_path, database_url, redis_url, env={"LINE_URL": through})
    with line.running() as worker:
        with line.locked():
            line.publish(100)
            line.wait_blocked()
            proxy.stall()
            began = time.monotonic()
            status = worker.terminate(within=40)
            took = time.monotonic() - began
            assert status == 0, worker.output
            assert took < 2 * A_FEW_SECONDS, worker.output
        proxy.cut()
        proxy.flow()
        worker.start()
        worker.wait_ready()
        line.settle(worker)
