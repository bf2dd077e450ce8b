"""A worker is killed (SIGKILL) at each point of a delivery's way: exactly one todo a message, none pending."""

import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from counting import count_in, counted_in
from line import Line, restart
from proxy import Proxy
from waiting import eventually


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    return Line(tmp_path, database_url, redis_url)


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        yield proxy


@pytest.fixture
def proxied(tmp_path: Path, database_url: str, redis_url: str, proxy: Proxy) -> Line:
    """The workers reach their source through the proxy; Dramatiq's own transport and this test do not."""
    path = urlsplit(redis_url).path
    return Line(tmp_path, database_url, redis_url, env={"LINE_URL": f"redis://{proxy.url_host}:{proxy.port}{path}"})


def test_a_message_is_not_acknowledged_while_its_transaction_is_open(line: Line) -> None:
    with line.running() as worker:
        with line.locked():
            line.publish(40)
            line.wait_blocked()
            # Seen from a second connection: all that was read is pending.
            group = line.group()
            assert group["pending"] == group["entries-read"] > 0
        line.settle(worker)


def test_killed_after_the_read_and_before_the_commit(line: Line) -> None:
    with line.running() as worker:
        with line.locked():
            line.publish(300)
            line.wait_blocked()
            read = len(line.pending())
            assert read == line.group()["entries-read"] > 0
            worker.kill_one()
            assert len(line.pending()) == read
            restart(worker)
            worker.wait_ready()
        line.settle(worker)


def test_killed_after_the_commit_and_before_the_acknowledgement(proxied: Line, proxy: Proxy) -> None:
    with proxied.running() as worker:
        with proxied.locked():
            proxied.publish(40)
            proxied.wait_blocked()
            read = len(proxied.pending())
            assert read > 0
            proxy.stall()
        # The store commits; its acknowledgement hangs.
        eventually(lambda: proxied.stored() >= read, what="what was read is stored")
        assert len(proxied.pending()) >= read
        worker.kill_one()
        # Cut before the flow: what the dead process sent must not arrive after all.
        proxy.cut()
        proxy.flow()
        assert len(proxied.pending()) >= read
        restart(worker)
        worker.wait_ready()
        proxied.settle(worker)


def test_killed_between_batches(line: Line) -> None:
    with line.running() as worker:
        line.publish(120)
        line.settle(worker)
        worker.kill_one()
        line.publish(120)
        restart(worker)
        worker.wait_ready()
        line.settle(worker)
    assert line.attempts() == 240


@pytest.mark.timeout(300)
def test_killed_again_and_again_under_load(tmp_path: Path, database_url: str, redis_url: str) -> None:
    kills, messages = 6, 5_000
    chance = random.Random(2)
    line = Line(tmp_path, database_url, redis_url, options={"batch": 100})
    found_pending = 0
    with line.running(processes=2) as worker:
        line.slow_down()
        for kill in range(kills):
            before = line.stored()
            line.publish(messages // kills)
            line.wait_stored(before + chance.randrange(1, 300))
            # One process, which makes Dramatiq stop the others; or all of them at once.
            worker.kill_one() if kill % 2 else worker.kill_all()
            found_pending += bool(line.pending())
            restart(worker)
            worker.wait_ready()
        line.publish(messages - len(line.published))
        line.settle(worker, within=40)
    # Else the kills found nobody at work.
    assert found_pending >= kills // 2


def test_a_redelivery_after_its_todo_is_done_makes_no_second_todo(line: Line) -> None:
    line.options = {**line.options, "provider": count_in(line.folder)}
    with line.running() as worker:
        line.publish(30)
        line.settle(worker)
        line.rows("UPDATE todos SET state = 'done', completed_at = now()")
        with line.source() as source:
            source.xgroup_setid("line", "switchboard", "0")
        eventually(lambda: counted_in(line.folder) >= 60, within=60, what="all of it was delivered again")
        line.settle(worker)
    assert line.rows("SELECT state, count(*) FROM todos GROUP BY state") == [("done", 30)]
