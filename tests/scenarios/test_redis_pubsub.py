"""Channel `redisPubSub` of asyncapi.yaml: each branch, with a real worker on real servers. Its losses are honest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy
from waiting import eventually
from worker import Worker

from scenarios.support import (
    NAME,
    REFUSE,
    TOO_DEEP,
    Line,
    Sentry,
    as_user,
    assert_dead_letters_logged,
    assert_no_such_message,
    assert_one_outage,
    assert_publish_gives_up_in_time,
    assert_rejected_at_once,
    logged,
    pid_at,
    publish_through_a_cut,
    remains,
    replay_with_a_larger_max_body,
    said,
    set_user,
    through,
)
from switchboard.embedded import PostgresServer, ValkeyServer


class ChannelLine(Line):
    transport = "redis-pubsub"
    place = "channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options |= {"loss_tolerant": True}

    def put(self, *bodies: bytes) -> None:
        with self.source.pipeline(transaction=True) as pipeline:
            for body in bodies:
                pipeline.publish(NAME, body)
            pipeline.execute()

    def left(self) -> int:
        """A channel keeps nothing."""
        return 0

    def subscribers(self) -> int:
        [(_, count)] = self.source.pubsub_numsub(NAME)
        return int(count)

    def wait_subscribed(self, worker: Worker) -> None:
        try:
            eventually(lambda: self.subscribers() == 1, within=20, what="one is subscribed")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{worker.output}") from None

    @contextmanager
    def listening(self) -> Iterator[Worker]:
        """A worker that is subscribed."""
        with self.running() as worker:
            self.wait_subscribed(worker)
            yield worker

    def is_subscribed(self, worker: Worker) -> bool:
        """Whether it, and nobody else, is."""
        with suppress(AssertionError):
            return self.subscriber(worker) == worker.pids
        return False

    def subscriber(self, *workers: Worker) -> list[int]:
        """The process that is subscribed."""
        return [pid_at(client["addr"], list(workers)) for client in self.source.client_list(_type="pubsub")]


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[ChannelLine]:
    line = ChannelLine(tmp_path, database_url, redis_url, redis_url)
    yield line
    line.close()


@pytest.fixture
def line_apart(tmp_path: Path, database_url: str, own_valkey: ValkeyServer, redis_url: str) -> Iterator[ChannelLine]:
    """Its source is its own."""
    line = ChannelLine(tmp_path, database_url, own_valkey.url, redis_url)
    yield line
    line.close()


def test_happy(line: ChannelLine) -> None:
    body = b'{"at": "2026-01-05T09:30:00Z"}'
    with line.listening() as worker:
        assert line.publish(body) == "1 receivers"
        line.settle(body, worker=worker)
    assert line.rows("SELECT external_id FROM events WHERE event_type <> 'switchboard.gap'") == [(None,)]
    todo = (f"redis:{NAME}:{sha256(body).hexdigest()}", "pending", {"at": "2026-01-05T09:30:00Z"})
    assert line.rows("SELECT idempotency_key, state, payload FROM todos") == [todo]
    # In one transaction
    assert line.rows("SELECT e.xmin = t.xmin FROM events e JOIN todos t ON t.event_id = e.id") == [(True,)]
    assert line.dead_letters() == []


def test_equal_body_no_second_todo(line: ChannelLine) -> None:
    with line.listening() as worker:
        line.put(b"same", b"same", b"other")
        line.settle(b"same", b"other", worker=worker)
        line.publish(b"same")
        line.put(b"third")
        line.settle(b"same", b"other", b"third", worker=worker)
        # A new one once the first one's todo has ended
        line.end_todos()
        line.publish(b"same")
        line.settle(b"same", b"other", b"third", b"same", worker=worker)
    assert line.rows("SELECT state FROM todos ORDER BY id") == [("done",)] * 3 + [("pending",)]


def test_standby_takes_over(line: ChannelLine) -> None:
    with line.worker() as first, line.running() as second:
        first.wait_ready()
        line.wait_subscribed(first)
        # The other one asks for the lock each second, and stands by.
        remains(lambda: line.subscribers() == 1, seconds=2, what="one is subscribed")
        active, standby = (first, second) if line.subscriber(first, second) == first.pids else (second, first)
        line.put(b"a")
        line.settle(b"a", worker=active)

        # It ends in order, and then one is killed
        assert active.terminate() == 0, active.output
        line.wait_subscribed(standby)
        assert line.subscriber(standby) == standby.pids
        line.put(b"b")
        line.settle(b"a", b"b", worker=standby)

        active.start()
        active.wait_ready()
        standby.kill_all()
        eventually(lambda: line.is_subscribed(active), within=20, what="the other one has taken over")
        line.put(b"c")
        line.settle(b"a", b"b", b"c", worker=active)


def test_broker_unavailable(line: ChannelLine, proxy: Proxy, redis_url: str) -> None:
    line.reached_by = through(proxy, redis_url)
    with line.source.pubsub() as heard:  # type: ignore[no-untyped-call]
        heard.subscribe(NAME)
        publish_through_a_cut(line, proxy, b"sent")
        eventually(lambda: (heard.get_message(timeout=0.1) or {}).get("data") == b"sent", what="it is heard")
    with line.listening() as worker:
        pids = worker.pids
        line.put(b"a")
        line.settle(b"a", worker=worker)
        proxy.refuse()
        proxy.cut()
        said(worker, "is unavailable")
        assert_publish_gives_up_in_time(line)
        proxy.accept()
        line.wait_subscribed(worker)
        line.put(b"b")
        line.settle(b"a", b"b", worker=worker)
        assert_one_outage(worker, "source")
        assert worker.pids == pids


def test_publish_rejected(line_apart: ChannelLine) -> None:
    line = line_apart
    set_user(line.source, "bot", "-publish")
    line.reached_by = as_user(line.source_url, "bot")
    # A right that is missing, also on the channel; headers and a key, which a message of a channel cannot carry.
    assert_rejected_at_once(line, "publish", reason="publish")
    set_user(line.source, "bot", "resetchannels", "&another")
    assert_rejected_at_once(line, "publish", reason="channel")
    set_user(line.source, "bot", "allchannels")
    assert_no_such_message(line, "publish", "--key", "order-1")
    assert_no_such_message(line, "publish", "--header", "trace=7f3a")


def test_ledger_unavailable(tmp_path: Path, own_postgres: PostgresServer, redis_url: str) -> None:
    line = ChannelLine(tmp_path, own_postgres.url, redis_url, redis_url)
    with line.listening() as worker:
        pids = worker.pids
        with line.locked():
            line.put(b"a", b"b")
            line.wait_blocked()
            own_postgres.kill()
        said(worker, "the ledger is unavailable")
        # Held in memory, and what comes meanwhile in the server's output buffer.
        line.put(b"c", b"d")
        remains(lambda: line.subscribers() == 1, seconds=1.5, what="it is not subscribed any more")
        own_postgres.start()
        line.settle(b"a", b"b", b"c", b"d", worker=worker)
        assert_one_outage(worker, "the ledger")
        assert worker.pids == pids
    assert line.dead_letters() == []
    line.close()


def test_decode_or_schema_mismatch(line: ChannelLine) -> None:
    with line.listening() as worker:
        line.put(b"good", TOO_DEEP, b"good too")
        line.wait_dead_letters(1, worker)
        line.settle(b"good", b"good too", worker=worker)
        assert line.dead_letters() == [("invalid", TOO_DEEP, 1)]
        assert line.transactions() == 1
        assert_dead_letters_logged(worker, "invalid", 1)


def test_body_too_large(line: ChannelLine) -> None:
    line.options["max_body"] = 100
    large, larger = os.urandom(101), os.urandom(5_000)
    with line.listening() as worker:
        line.put(b"x" * 100, large, larger)
        line.wait_dead_letters(2, worker)
        line.settle(b"x" * 100, worker=worker)
        assert sorted(line.dead_letters()) == sorted([("too_large", large, 1), ("too_large", larger, 1)])
        assert_dead_letters_logged(worker, "too_large", 2)
    replay_with_a_larger_max_body(line, large)
    line.settle(b"x" * 100, large)


def test_redelivery_limit_exceeded(line: ChannelLine, sentry: Sentry) -> None:
    line.options["max_deliveries"] = 3
    line.env["SENTRY_DSN"] = sentry.dsn
    with line.listening() as worker:
        line.rows(REFUSE)
        line.put(b"before", b"refused", b"after")
        # Its neighbours at once
        line.settle(b"before", b"after", worker=worker)
        line.wait_dead_letters(1, worker)
        assert line.dead_letters() == [("poison", b"refused", 3)]
        assert line.todos() == line.events()
        assert_dead_letters_logged(worker, "poison", 1)
        sentry.wait_told("poison")


def test_messages_lost_while_away(line: ChannelLine, proxy: Proxy, redis_url: str) -> None:
    line.reached_by = through(proxy, redis_url)
    with line.listening() as worker:
        line.put(b"before")
        line.settle(b"before", worker=worker)
        proxy.refuse()
        proxy.cut()
        eventually(lambda: line.subscribers() == 0, what="nobody is subscribed")
        line.put(b"lost")
        said(worker, "is unavailable")
        proxy.accept()
        line.wait_subscribed(worker)
        line.put(b"after")
        line.settle(b"before", b"after", worker=worker)
        assert_gaps(line, worker)


def assert_gaps(line: ChannelLine, worker: Worker) -> None:
    """The process's beginning, of which it knows nothing, and one gap of some seconds since."""
    eventually(lambda: len(line.gaps()) == 2, what="the gap is recorded")
    beginning, seconds = line.gaps()
    assert beginning is None
    assert 0 <= seconds < 30
    assert logged(worker, "[WARNING]", f"adapter {NAME}: nobody listened for", "is lost") == 1, worker.output
    gap: list[tuple[Any, ...]] = line.rows(
        "SELECT content_type, trust_mode, external_id FROM events WHERE event_type = 'switchboard.gap'"
    )
    assert gap == [("application/json", "queue", None)] * 2


def test_messages_lost_on_overflow(line_apart: ChannelLine) -> None:
    line = line_apart
    line.source.config_set("client-output-buffer-limit", "pubsub 1mb 1mb 60")
    # It reads no more than a few messages while the ledger takes none.
    line.options["batch"] = 20
    published: list[bytes] = []
    with line.listening() as worker:
        with line.locked():
            while line.subscribers():
                assert len(published) < 5_000, "its buffer does not overflow"
                # Small ones: Valkey 9 does not count a large one that it sends without a copy.
                some = [os.urandom(8_000) for _ in range(50)]
                published += some
                line.put(*some)
        line.wait_subscribed(worker)
        line.put(b"after")
        eventually(lambda: b"after" in line.todos(), within=20, what="it goes on with what comes")
        stored = line.todos()
        assert set(stored) < {*published, b"after"}, "nothing was lost"
        assert sorted(line.events()) == sorted(stored)
        assert_gaps(line, worker)
    assert line.dead_letters() == []


def test_messages_lost_with_worker(line: ChannelLine) -> None:
    with line.listening() as worker:
        line.put(b"before")
        line.settle(b"before", worker=worker)
        with line.locked():
            line.put(b"in hand")
            line.wait_blocked()
            worker.kill_all()
        eventually(lambda: line.subscribers() == 0, what="nobody is subscribed")
        line.put(b"between")
    with line.listening() as worker:
        line.put(b"after")
        line.settle(b"before", b"after", worker=worker)
        # The one that was killed could tell of nothing; the new one knows that it has only begun.
        eventually(lambda: line.gaps() == [None, None], what="that it has begun is recorded")
        assert logged(worker, "[WARNING]", f"adapter {NAME}: nobody listened before now") == 1, worker.output
    assert line.dead_letters() == []


def test_published_to_nobody(line: ChannelLine) -> None:
    assert line.publish(b"gone") == "0 receivers"
    with line.publisher(seconds=5) as publisher:
        assert publisher.publish(b"gone") == "0 receivers"
    with line.listening() as worker:
        assert line.publish(b"heard") == "1 receivers"
        line.settle(b"heard", worker=worker)
