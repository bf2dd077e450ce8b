"""Channel `redisStream` of asyncapi.yaml: each branch, with a real worker on real servers."""

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from counting import count_in, counted_in
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
from switchboard.embedded import PostgresServer, ValkeyServer, free_port

GROUP = "switchboard"

#: A team's broker that serves Prometheus, as Dramatiq's own documentation has it.
WITH_METRICS = """
import os
import dramatiq, switchboard
from dramatiq.middleware.prometheus import Prometheus

broker = switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"])
broker.add_middleware(Prometheus())
dramatiq.set_broker(broker)
"""


class StreamLine(Line):
    transport = "redis-stream"
    place = "stream"

    def put(self, *bodies: bytes) -> None:
        with self.source.pipeline(transaction=True) as pipeline:
            for body in bodies:
                pipeline.xadd(NAME, {"data": body})
            pipeline.execute()

    def left(self) -> int:
        group = self.group()
        return int(group["pending"]) + int(group["lag"] or 0) if group else self.source.xlen(NAME)

    def group(self) -> dict[str, Any]:
        """The consumer group as XINFO shows it; empty where it is missing."""
        try:
            groups = self.source.xinfo_groups(NAME)
        except redis.ResponseError:
            return {}
        return next((group for group in groups if group["name"] == GROUP.encode()), {})

    def pending(self) -> list[dict[str, Any]]:
        return list(self.source.xpending_range(NAME, GROUP, "-", "+", 100)) if self.group() else []

    def holders(self) -> list[int]:
        """The process of each pending entry."""
        return [pid_in(entry["consumer"].decode()) for entry in self.pending()]

    def consumers(self) -> list[int]:
        return [pid_in(consumer["name"].decode()) for consumer in self.source.xinfo_consumers(NAME, GROUP)]

    def delivered(self) -> int:
        """How often an entry came to the ledger, a redelivery too."""
        return counted_in(self.folder)


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[StreamLine]:
    options: dict[str, object] = {"body": "data", "provider": count_in(tmp_path)}
    line = StreamLine(tmp_path, database_url, redis_url, redis_url, options)
    yield line
    line.close()


@pytest.fixture
def line_with_users(
    tmp_path: Path, database_url: str, own_valkey: ValkeyServer, redis_url: str
) -> Iterator[StreamLine]:
    """Its source is its own, and its workers are a user there whose rights can be taken away."""
    options: dict[str, object] = {"body": "data", "provider": count_in(tmp_path)}
    line = StreamLine(tmp_path, database_url, own_valkey.url, redis_url, options)
    set_user(line.source, "bot")
    line.reached_by = as_user(own_valkey.url, "bot")
    yield line
    line.close()


def test_happy(line: StreamLine) -> None:
    with line.running() as worker:
        with line.locked():
            entry_id = line.publish(b'{"service": "billing"}', "--header", "trace=7f3a")
            line.wait_blocked()
            # Not before the commit
            assert [entry["message_id"].decode() for entry in line.pending()] == [entry_id]
        line.settle(b'{"service": "billing"}', worker=worker)
    key = f"redis:{NAME}:{entry_id}"
    assert line.rows("SELECT external_id, headers FROM events") == [(key, {"trace": "7f3a"})]
    assert line.rows("SELECT idempotency_key, state, payload FROM todos") == [(key, "pending", {"service": "billing"})]
    # In one transaction
    assert line.rows("SELECT e.xmin = t.xmin FROM events e JOIN todos t ON t.event_id = e.id") == [(True,)]
    assert line.dead_letters() == []


def test_redelivered_no_second_effect(line: StreamLine, proxy: Proxy, redis_url: str) -> None:
    line.reached_by = through(proxy, redis_url)
    with line.running() as worker:
        with line.locked():
            line.put(b"a", b"b")
            line.wait_blocked()
            proxy.stall()
        # The commit is there; the acknowledgement hangs, and is lost with the worker.
        eventually(lambda: len(line.todos()) == 2, what="they are stored")
        worker.kill_all()
        proxy.cut()
        proxy.flow()
        assert len(line.pending()) == 2
        line.rows("UPDATE todos SET state = 'done', completed_at = now() WHERE payload = '{\"text\": \"a\"}'")
        before = line.delivered()
        worker.start()
        worker.wait_ready()
        line.settle(b"a", b"b", worker=worker)
        assert line.delivered() == before + 2, "they were not delivered again"
        # And all of a stream from its beginning.
        line.end_todos()
        line.source.xgroup_setid(NAME, GROUP, "0")
        eventually(lambda: line.delivered() == before + 4, what="they are delivered again")
        line.settle(b"a", b"b", worker=worker)
    assert line.rows("SELECT state FROM todos") == [("done",), ("done",)]
    assert line.dead_letters() == []


def test_dead_worker_taken_over(line: StreamLine) -> None:
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
            # A live worker's entries are left alone, however long they take and however often another one looks.
            looks = calls(line.source, "xinfo|consumers")
            eventually(lambda: calls(line.source, "xinfo|consumers") >= looks + 3, within=20, what="they have looked")
            assert sorted(line.holders()) == sorted([one, one, other])
            first.kill_all()
            eventually(lambda: line.holders() == [other] * 3, what="the living one has taken over")
            release_locks(line)
            line.settle(b"a", b"b", b"c", worker=second)
            eventually(lambda: line.consumers() == [other], what="the empty consumer is removed")


def test_acknowledged_on_completion(line: StreamLine) -> None:
    line.options["ack"] = "complete"
    with line.running() as worker:
        line.put(b"done", b"failed", b"open")
        eventually(lambda: len(line.todos()) == 3, what="they are stored at once")
        eventually(lambda: {entry["consumer"] for entry in line.pending()} == {b"switchboard.stored"})
        # Across restarts, and without counting as a failed delivery.
        assert worker.terminate() == 0, worker.output
        assert [(entry["consumer"], entry["times_delivered"]) for entry in line.pending()] == [
            (b"switchboard.stored", 1)
        ] * 3
        worker.start()
        worker.wait_ready()
        # It reads, and so has looked at what others left.
        line.put(b"new")
        eventually(lambda: len(line.todos()) == 4, what="the new one is stored")
        eventually(lambda: len(line.pending()) == 4 and not line.group()["lag"], what="nothing is acknowledged yet")
        line.rows("UPDATE todos SET state = payload ->> 'text' WHERE payload ->> 'text' IN ('done', 'failed')")
        began = time.monotonic()
        eventually(lambda: len(line.pending()) == 2, what="what has ended is acknowledged")
        first = time.monotonic() - began
        line.end_todos()
        began = time.monotonic()
        eventually(lambda: not line.pending(), what="all is acknowledged")
        # Within a second, unless the machine stood still.
        assert min(first, time.monotonic() - began) < 1
    assert line.events() == [b"done", b"failed", b"open", b"new"]
    assert line.dead_letters() == []


def test_producer_retry_no_second_todo(line: StreamLine) -> None:
    line.options["key"] = "order"
    first = line.publish(b"ship", "--key", "order-1")
    again = line.publish(b"ship", "--key", "order-1")
    assert first != again, "two entries"
    with line.running() as worker:
        line.settle(b"ship", worker=worker)
        # Also once its todo has ended, while another key is another todo.
        line.end_todos()
        line.publish(b"ship", "--key", "order-1")
        line.publish(b"ship", "--key", "order-2")
        line.settle(b"ship", b"ship", worker=worker)
    assert line.group()["entries-read"] == 4
    assert line.rows("SELECT state FROM todos ORDER BY id") == [("done",), ("pending",)]
    assert line.dead_letters() == []


def test_broker_unavailable(line: StreamLine, proxy: Proxy, redis_url: str) -> None:
    line.reached_by = through(proxy, redis_url)
    publish_through_a_cut(line, proxy, b"a")
    with line.running() as worker:
        pids = worker.pids
        line.settle(b"a", worker=worker)
        proxy.refuse()
        proxy.cut()
        said(worker, "is unavailable")
        line.put(b"b")
        assert_publish_gives_up_in_time(line)
        assert line.group()["lag"] == 1, "it goes on reading"
        proxy.accept()
        line.settle(b"a", b"b", worker=worker)
        assert_one_outage(worker, "source")
        assert worker.pids == pids
    assert line.source.xlen(NAME) == 2
    assert line.delivered() == 2, "it went on where it was"


def test_consumer_group_missing(line: StreamLine) -> None:
    with line.running() as worker:
        pids = worker.pids
        line.put(b"a", b"b")
        line.settle(b"a", b"b", worker=worker)
        line.end_todos()
        line.source.xgroup_destroy(NAME, GROUP)
        line.put(b"c")
        line.settle(b"a", b"b", b"c", worker=worker)
        assert line.delivered() == 5, "it began at the beginning"
        assert_one_outage(worker, "source")
        # The stream too
        line.source.delete(NAME)
        eventually(line.group, what="the group is there again")
        line.put(b"d")
        line.settle(b"a", b"b", b"c", b"d", worker=worker)
        assert worker.pids == pids


def test_publish_rejected(line_with_users: StreamLine) -> None:
    line = line_with_users
    # Not a stream; a right that is missing; a key and a body that no entry can carry.
    line.source.set(NAME, "a string")
    assert_rejected_at_once(line, "xadd", reason="WRONGTYPE")
    line.source.delete(NAME)
    set_user(line.source, "bot", "-xadd")
    assert_rejected_at_once(line, "xadd", reason="xadd")
    set_user(line.source, "bot")
    assert_no_such_message(line, "xadd", "--key", "order-1")
    line.options.pop("body")
    assert_no_such_message(line, "xadd")
    assert line.source.exists(NAME) == 0


def test_ledger_unavailable(tmp_path: Path, own_postgres: PostgresServer, redis_url: str) -> None:
    line = StreamLine(tmp_path, own_postgres.url, redis_url, redis_url, {"body": "data"})
    with line.running() as worker:
        pids = worker.pids
        with line.locked():
            line.put(b"a", b"b")
            line.wait_blocked()
            own_postgres.kill()
        said(worker, "the ledger is unavailable")
        wait_no_reader(line.source)
        line.put(b"c")
        # Held and not acknowledged; nothing more is read.
        remains(lambda: (len(line.pending()), line.group()["lag"]) == (2, 1), seconds=1.5, what="it goes on")
        own_postgres.start()
        line.settle(b"a", b"b", b"c", worker=worker)
        assert_one_outage(worker, "the ledger")
        assert worker.pids == pids
    assert line.dead_letters() == []
    line.close()


def test_decode_or_schema_mismatch(line: StreamLine) -> None:
    with line.source.pipeline(transaction=True) as pipeline:
        pipeline.xadd(NAME, {"data": b"good"})
        pipeline.xadd(NAME, {"other": b"no body"})
        pipeline.xadd(NAME, {"data": TOO_DEEP})
        pipeline.xadd(NAME, {"data": b"good too"})
        pipeline.execute()
    with line.running() as worker:
        line.wait_dead_letters(2, worker)
        line.settle(b"good", b"good too", worker=worker)
        assert line.dead_letters() == [("invalid", b'{"other":"no body"}', 1), ("invalid", TOO_DEEP, 1)]
        assert line.transactions() == 1
        assert_dead_letters_logged(worker, "invalid", 2)
    assert line.group()["entries-read"] == 4


def test_body_too_large(line: StreamLine) -> None:
    line.options["max_body"] = 100
    large, larger = os.urandom(101), os.urandom(5_000)
    line.put(b"x" * 100, large, larger)
    with line.running() as worker:
        line.wait_dead_letters(2, worker)
        line.settle(b"x" * 100, worker=worker)
        assert line.dead_letters() == [("too_large", large, 1), ("too_large", larger, 1)]
        assert_dead_letters_logged(worker, "too_large", 2)
    replay_with_a_larger_max_body(line, large)
    line.settle(b"x" * 100, large)


def test_id_conflict(line: StreamLine) -> None:
    line.source.xadd(NAME, {"data": b"before"}, id="5-1")
    with line.running() as worker:
        line.settle(b"before", worker=worker)
        line.end_todos()
        # The stream is deleted and begun again
        with line.source.pipeline(transaction=True) as pipeline:
            pipeline.delete(NAME)
            pipeline.xadd(NAME, {"data": b"after"}, id="5-1")
            pipeline.xadd(NAME, {"data": b"new"}, id="5-2")
            pipeline.execute()
        line.wait_dead_letters(1, worker)
        line.settle(b"before", b"new", worker=worker)
        assert line.dead_letters() == [("id_conflict", b"after", 1)]
        assert_dead_letters_logged(worker, "id_conflict", 1)
        # Not lost: a replay makes a todo of it, under a key of its own
        done = line.switchboard("dead-letters", "replay", "--adapter", NAME, "--reason", "id_conflict")
        assert done.returncode == 0, done.stderr
        line.settle(b"before", b"new", b"after", worker=worker)


def test_ack_failed(line_with_users: StreamLine) -> None:
    line = line_with_users
    line.options["claim_idle"] = "2s"
    with line.running() as worker:
        pids = worker.pids
        set_user(line.source, "bot", "-xack")
        line.put(b"a", b"b")
        eventually(lambda: len(line.todos()) == 2, what="the todos are safe")
        said(worker, "acknowledge on")
        assert len(line.pending()) == 2
        set_user(line.source, "bot")
        line.settle(b"a", b"b", worker=worker)
        assert line.delivered() == 2, "the acknowledgement was kept, and tried again"
        assert_one_outage(worker, "source")

        # A redelivery meanwhile, to a worker who may acknowledge
        set_user(line.source, "bot", "-xack")
        line.put(b"c", b"d")
        eventually(lambda: len(line.todos()) == 4, what="the todos are safe")
        eventually(lambda: logged(worker, "is unavailable") == 2, what="its acknowledgement has failed")
        set_user(line.source, "other")
        with line.running(env={"LINE_URL": as_user(line.source_url, "other")}) as other:
            line.settle(b"a", b"b", b"c", b"d", worker=other)
            assert line.delivered() == 6
            set_user(line.source, "bot")
            eventually(lambda: logged(worker, "is back") == 2, what="its late acknowledgement is no error")
            line.put(b"e")
            line.settle(b"a", b"b", b"c", b"d", b"e", worker=worker)
        assert worker.pids == pids
    assert line.dead_letters() == []


def test_redelivery_limit_exceeded(line: StreamLine, sentry: Sentry) -> None:
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


def test_entries_lost_at_source(line: StreamLine) -> None:
    (line.folder / "team.py").write_text(WITH_METRICS)
    port = free_port()
    metrics = {"dramatiq_prom_host": "127.0.0.1", "dramatiq_prom_port": str(port)}
    metrics["dramatiq_prom_db"] = str(line.folder / "metrics")
    with line.running() as worker, line.locked():
        line.put(b"trimmed", b"deleted", b"kept")
        line.wait_blocked()
        trimmed, deleted, _ = (entry["message_id"].decode() for entry in line.pending())
        worker.kill_all()
    line.source.xdel(NAME, deleted)
    line.source.xtrim(NAME, minid=deleted, approximate=False)
    assert len(line.pending()) == 3
    with line.running("team", env=metrics) as worker:
        line.settle(b"kept", worker=worker)
        assert logged(worker, "[ERROR]", f"adapter {NAME}: 2 pending entries", trimmed, deleted) == 1, worker.output
        counted = f'switchboard_lost_at_source_total{{adapter="{NAME}"}} 2.0'

        def metric() -> bool:
            # It begins to listen after the workers are ready.
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return counted in answer.read().decode()
            return False

        eventually(metric, what=counted)
    assert line.dead_letters() == []
    assert json.dumps(line.holders()) == "[]", "they do not come up again"
