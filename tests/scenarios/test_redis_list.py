"""Channel `redisList` of asyncapi.yaml: each branch, with a real worker on real servers."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from proxy import Proxy
from waiting import eventually

from scenarios.support import (
    DEADLY_PROVIDER,
    NAME,
    TOO_DEEP,
    Line,
    Sentry,
    as_user,
    assert_dead_letters_logged,
    assert_no_such_message,
    assert_one_outage,
    assert_publish_gives_up_in_time,
    assert_rejected_at_once,
    calls,
    deaths,
    logged,
    pid_in,
    publish_through_a_cut,
    release_locks,
    remains,
    replay_with_a_larger_max_body,
    restart,
    said,
    set_user,
    through,
    wait_no_reader,
)
from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.pull.redis_client import as_text

#: What the keys beside the list begin with.
BESIDE = f"{{{NAME}}}:switchboard"


class ListLine(Line):
    transport = "redis-list"
    place = "list"

    def put(self, *bodies: bytes) -> None:
        self.source.lpush(NAME, *bodies)

    def left(self) -> int:
        return self.unread() + len(self.holders())

    def unread(self) -> int:
        return self.source.llen(NAME)

    def holders(self) -> list[int]:
        """The process of each message on a processing list."""
        keys = [as_text(key) for key in self.source.scan_iter(f"{BESIDE}:processing:*")]
        return [pid_in(key) for key in keys for _ in range(self.source.llen(key))]


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[ListLine]:
    line = ListLine(tmp_path, database_url, redis_url, redis_url)
    yield line
    line.close()


@pytest.fixture
def line_with_users(tmp_path: Path, database_url: str, own_valkey: ValkeyServer, redis_url: str) -> Iterator[ListLine]:
    """Its source is its own, and its workers are a user there whose rights can be taken away."""
    line = ListLine(tmp_path, database_url, own_valkey.url, redis_url)
    set_user(line.source, "bot")
    line.reached_by = as_user(own_valkey.url, "bot")
    yield line
    line.close()


def test_happy(line: ListLine) -> None:
    body = b'{"job": "resize", "image": 17}'
    with line.running() as worker:
        with line.locked():
            answer = line.publish(body)
            line.wait_blocked()
            # On the worker's processing list until the commit
            assert (line.unread(), line.holders()) == (0, worker.pids)
        line.settle(body, worker=worker)
    digest = sha256(body).hexdigest()
    assert answer == digest
    assert line.rows("SELECT external_id FROM events") == [(None,)]
    todo = (f"redis:{NAME}:{digest}", "pending", {"job": "resize", "image": 17})
    assert line.rows("SELECT idempotency_key, state, payload FROM todos") == [todo]
    # In one transaction
    assert line.rows("SELECT e.xmin = t.xmin FROM events e JOIN todos t ON t.event_id = e.id") == [(True,)]
    assert line.dead_letters() == []


def test_redelivered_no_second_effect(line: ListLine, proxy: Proxy, redis_url: str) -> None:
    line.reached_by = through(proxy, redis_url)
    with line.running() as worker:
        with line.locked():
            line.put(b"a", b"b")
            line.wait_blocked()
            proxy.stall()
        # The commit is there; the acknowledgement hangs, and is lost with the worker.
        eventually(lambda: len(line.todos()) == 2, what="they are stored")
        dead = worker.pids
        worker.kill_all()
        proxy.cut()
        proxy.flow()
        assert line.holders() == dead * 2
        line.rows("UPDATE todos SET state = 'claimed' WHERE payload = '{\"text\": \"a\"}'")
        worker.start()
        worker.wait_ready()
        line.settle(b"a", b"b", worker=worker)
    assert line.rows("SELECT state FROM todos ORDER BY payload") == [("claimed",), ("pending",)]
    assert line.dead_letters() == []


def test_dead_worker_taken_over(line: ListLine) -> None:
    # Short, so that a worker looks often for what others have left, and longer than anything takes here.
    line.options["claim_idle"] = "5s"
    with line.running() as first, line.locked():
        # Two batches: it reads no more.
        line.put(b"a")
        line.wait_blocked()
        line.put(b"b")
        line.wait_blocked(2)
        with line.running() as second:
            line.put(b"c")
            line.wait_blocked(3)
            [one], [other] = first.pids, second.pids
            assert sorted(line.holders()) == sorted([one, one, other])
            # A live worker's list is left alone, however long it takes and however often another one looks.
            looks = calls(line.source, "hgetall")
            eventually(lambda: calls(line.source, "hgetall") >= looks + 3, within=20, what="the other one has looked")
            assert sorted(line.holders()) == sorted([one, one, other])
            first.kill_all()
            eventually(lambda: line.holders() == [other] * 3, what="the living one has taken over")
            release_locks(line)
            line.settle(b"a", b"b", b"c", worker=second)


def test_equal_body_no_second_todo(line: ListLine) -> None:
    # In one batch, and in another one
    line.put(b"same", b"same", b"other")
    with line.running() as worker:
        line.settle(b"same", b"other", worker=worker)
        line.publish(b"same")
        line.put(b"third")
        line.settle(b"same", b"other", b"third", worker=worker)
        # A new one once the first one's todo has ended
        line.end_todos()
        line.publish(b"same")
        line.settle(b"same", b"other", b"third", b"same", worker=worker)
    assert line.rows("SELECT state FROM todos ORDER BY id") == [("done",)] * 3 + [("pending",)]
    assert line.dead_letters() == []


def test_broker_unavailable(line: ListLine, proxy: Proxy, redis_url: str) -> None:
    line.reached_by = through(proxy, redis_url)
    publish_through_a_cut(line, proxy, b"a")
    assert line.unread() == 1
    with line.running() as worker:
        pids = worker.pids
        line.settle(b"a", worker=worker)
        lose_a_reply(line, proxy, b"b")
        assert line.holders() == pids
        proxy.refuse()
        proxy.cut()
        proxy.flow()
        said(worker, "is unavailable")
        line.put(b"c")
        assert_publish_gives_up_in_time(line)
        assert line.unread() == 1, "it goes on reading"
        proxy.accept()
        # What the lost reply left is found on its own list.
        line.settle(b"a", b"b", b"c", worker=worker)
        assert_one_outage(worker, "source")
        assert worker.pids == pids


def lose_a_reply(line: ListLine, proxy: Proxy, body: bytes) -> None:
    """The server has moved the message onto the worker's list, and its reply is on the way, where nothing passes."""

    def caught() -> bool:
        proxy.stall()
        if line.source.info("clients")["blocked_clients"]:
            line.put(body)
            if line.holders():
                return True
            # Its read had just ended.
            line.source.lrem(NAME, 1, body)  # type: ignore[arg-type]
        proxy.flow()
        return False

    eventually(caught, what="a reply is under way")


def test_publish_rejected(line_with_users: ListLine) -> None:
    line = line_with_users
    # Not a list; a right that is missing; headers and a key, which a message of a list cannot carry.
    line.source.set(NAME, "a string")
    assert_rejected_at_once(line, "lpush", reason="WRONGTYPE")
    line.source.delete(NAME)
    set_user(line.source, "bot", "-lpush")
    assert_rejected_at_once(line, "lpush", reason="lpush")
    set_user(line.source, "bot")
    assert_no_such_message(line, "lpush", "--key", "order-1")
    assert_no_such_message(line, "lpush", "--header", "trace=7f3a")
    assert line.unread() == 0


def test_ledger_unavailable(tmp_path: Path, own_postgres: PostgresServer, redis_url: str) -> None:
    line = ListLine(tmp_path, own_postgres.url, redis_url, redis_url)
    with line.running() as worker:
        pids = worker.pids
        with line.locked():
            line.put(b"a", b"b")
            line.wait_blocked()
            own_postgres.kill()
        said(worker, "the ledger is unavailable")
        wait_no_reader(line.source)
        line.put(b"c")
        # Held on the processing list; nothing more is read.
        remains(lambda: (line.holders(), line.unread()) == (pids * 2, 1), seconds=1.5, what="it goes on")
        own_postgres.start()
        line.settle(b"a", b"b", b"c", worker=worker)
        assert_one_outage(worker, "the ledger")
        assert worker.pids == pids
    assert line.dead_letters() == []
    line.close()


def test_decode_or_schema_mismatch(line: ListLine) -> None:
    line.put(b"good", TOO_DEEP, b"good too")
    with line.running() as worker:
        line.wait_dead_letters(1, worker)
        line.settle(b"good", b"good too", worker=worker)
        assert line.dead_letters() == [("invalid", TOO_DEEP, 1)]
        assert line.transactions() == 1
        assert_dead_letters_logged(worker, "invalid", 1)


def test_body_too_large(line: ListLine) -> None:
    line.options["max_body"] = 100
    large, larger = os.urandom(101), os.urandom(5_000)
    line.put(b"x" * 100, large, larger)
    with line.running() as worker:
        line.wait_dead_letters(2, worker)
        line.settle(b"x" * 100, worker=worker)
        assert sorted(line.dead_letters()) == sorted([("too_large", large, 1), ("too_large", larger, 1)])
        assert_dead_letters_logged(worker, "too_large", 2)
    replay_with_a_larger_max_body(line, large)
    line.settle(b"x" * 100, large)


def test_ack_failed(line_with_users: ListLine) -> None:
    line = line_with_users
    with line.running() as worker:
        pids = worker.pids
        set_user(line.source, "bot", "-lrem")
        line.put(b"a", b"b")
        eventually(lambda: len(line.todos()) == 2, what="the todos are safe")
        said(worker, "acknowledge on")
        assert line.holders() == pids * 2
        set_user(line.source, "bot")
        line.settle(b"a", b"b", worker=worker)
        assert_one_outage(worker, "source")

        # A redelivery meanwhile: its worker is killed, and another one may remove
        set_user(line.source, "bot", "-lrem")
        line.put(b"c", b"d")
        eventually(lambda: len(line.todos()) == 4, what="the todos are safe")
        eventually(lambda: logged(worker, "is unavailable") == 2, what="its removal has failed")
        worker.kill_all()
        assert line.holders() == pids * 2
        set_user(line.source, "other")
        with line.running(env={"LINE_URL": as_user(line.source_url, "other")}) as other:
            line.settle(b"a", b"b", b"c", b"d", worker=other)
    assert line.dead_letters() == []


def test_redelivery_limit_exceeded(line: ListLine, sentry: Sentry) -> None:
    (line.folder / "deadly.py").write_text(DEADLY_PROVIDER)
    line.options |= {"provider": "deadly:shape", "max_deliveries": 3}
    line.env["SENTRY_DSN"] = sentry.dsn
    line.put(b"before", b"deadly", b"after")
    with line.running() as worker:
        for death in (1, 2, 3):
            eventually(lambda death=death: deaths(line) == death and not worker.pids, within=20, what=f"death {death}")  # type: ignore[misc]
            restart(worker)
        line.wait_dead_letters(1, worker)
        line.settle(b"before", b"after", worker=worker)
        # Without another try
        assert deaths(line) == 3
        assert line.dead_letters() == [("poison", b"deadly", 3)]
        assert_dead_letters_logged(worker, "poison", 1)
        sentry.wait_told("poison")
    assert line.source.keys(f"{BESIDE}:tries") == []
