"""Publishing on a real Valkey: once where it can be, again where that may help, at once where it cannot."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from proxy import Proxy
from waiting import eventually

from switchboard import ingest
from switchboard.embedded import ValkeyServer
from switchboard.errors import BrokerUnavailable, PublishRejected
from switchboard.ledger import Ledger, migrate
from switchboard.model import Delivery, Route
from switchboard.normalize import resolve_provider
from switchboard.pull import Outgoing, Publisher, PullAdapter, RedisList, RedisStream

SOON = timedelta(milliseconds=200)
SHORT = timedelta(seconds=1)
MEGABYTE = 1024**2
ROUTE = Route(adapter="deploys", queue="q", key_prefix="redis:deploys")


def stream(url: str, **options: Any) -> RedisStream:
    return RedisStream("deploys", **{"url": url, "stream": "deploys", "queue": "q", "body": "data", **options})


@pytest.fixture
def adapter(redis_url: str) -> Iterator[RedisStream]:
    with closing(stream(redis_url)) as adapter:
        yield adapter


@pytest.fixture
def keyed(redis_url: str) -> Iterator[RedisStream]:
    with closing(stream(redis_url, key="idempotency_key")) as adapter:
        yield adapter


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


def receive(adapter: PullAdapter) -> list[Delivery]:
    found: list[Delivery] = []
    while got := adapter.receive(500, 16 * MEGABYTE, SOON):
        found += got
    return found


def ingested(ledger: Ledger, adapter: PullAdapter, url: str) -> list[tuple[Any, ...]]:
    """Reads and stores all there is; then the keys and bodies of all todos."""
    deliveries = receive(adapter)
    with ledger.transaction() as tx:
        outcome = ingest.store(tx.connection, ROUTE, resolve_provider("generic"), deliveries)
    assert not outcome.refused
    adapter.acknowledge(deliveries)
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT t.idempotency_key, e.payload FROM todos t JOIN events e ON e.id = t.event_id ORDER BY t.id"
        ).fetchall()


def calls(client: "redis.Redis", command: str) -> int:
    """How often the server was asked for it, refusals counted."""
    stats = client.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("calls", 0)) + int(stats.get("rejected_calls", 0))


# What is published


def test_one_message_is_put_on_the_source_and_its_id_returned(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    body = bytes(range(256))
    entry_id = Publisher(adapter).publish(body)
    assert redis_client.xrange("deploys") == [(entry_id.encode(), {b"data": body})]


def test_headers_go_along(adapter: RedisStream) -> None:
    Publisher(adapter).publish(b"{}", {"content-type": "application/json", "x-trace": "käse"})
    (got,) = receive(adapter)
    assert (got.body, got.content_type) == (b"{}", "application/json")
    assert got.headers["x-trace"] == "käse"


def test_many_messages_go_in_their_order_and_their_ids_come_back_in_it(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    sent = [Outgoing(str(number).encode(), {"n": str(number)}) for number in range(1234)]
    ids = list(Publisher(adapter).publish_many(iter(sent)))
    entries: Any = redis_client.xrange("deploys")
    assert [entry_id.decode() for entry_id, _ in entries] == ids
    assert [fields for _, fields in entries] == [{b"n": message.body, b"data": message.body} for message in sent]


def test_many_messages_go_to_a_list_too(redis_url: str, redis_client: "redis.Redis") -> None:
    with closing(RedisList("jobs", url=redis_url, list="jobs", queue="q")) as jobs:
        assert len(list(Publisher(jobs).publish_many(Outgoing(b"%d" % number) for number in range(600)))) == 600
        assert redis_client.lrange("jobs", -3, -1) == [b"2", b"1", b"0"]
        assert redis_client.llen("jobs") == 600


def test_one_publisher_serves_many_threads(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    publisher = Publisher(adapter)
    sent = [b"%d" % number for number in range(400)]
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(publisher.publish, sent))
    entries: Any = redis_client.xrange("deploys")
    assert {entry_id.decode(): fields[b"data"] for entry_id, fields in entries} == dict(zip(ids, sent, strict=True))


def test_nothing_to_publish_is_nothing(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    assert list(Publisher(adapter).publish_many([])) == []
    assert redis_client.exists("deploys") == 0


# A key of the producer's own


def test_a_producers_retry_is_one_todo(keyed: RedisStream, ledger: Ledger, database_url: str) -> None:
    publisher = Publisher(keyed)
    first = publisher.publish(b'{"order": 7}', {"x-try": "1"}, "order-7")
    again = publisher.publish(b'{"order": 7}', {"x-try": "2"}, "order-7")
    publisher.publish(b'{"order": 8}', idempotency_key="order-8")
    assert first != again
    expected = [("redis:deploys:key:order-7", b'{"order": 7}'), ("redis:deploys:key:order-8", b'{"order": 8}')]
    assert ingested(ledger, keyed, database_url) == expected
    # And later, when the first is stored, and again when its todo has ended: an event is known by its key.
    publisher.publish(b'{"order": 7}', idempotency_key="order-7")
    assert ingested(ledger, keyed, database_url) == expected
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE todos SET state = 'done'")
    publisher.publish(b'{"order": 7}', idempotency_key="order-7")
    assert ingested(ledger, keyed, database_url) == expected


def test_a_message_without_a_key_beside_those_with_one_is_known_by_its_entry(
    keyed: RedisStream, ledger: Ledger, database_url: str
) -> None:
    publisher = Publisher(keyed)
    ids = [publisher.publish(b"same"), publisher.publish(b"same")]
    assert [key for key, _ in ingested(ledger, keyed, database_url)] == [f"redis:deploys:{each}" for each in ids]


def test_without_a_body_field_the_key_is_a_field_of_the_body(redis_url: str, ledger: Ledger, database_url: str) -> None:
    with closing(stream(redis_url, body="", key="idempotency_key")) as adapter:
        publisher = Publisher(adapter)
        for _ in range(2):
            publisher.publish(b'{"order": "7"}', idempotency_key="order-7")
        [(key, body)] = ingested(ledger, adapter, database_url)
    assert key == "redis:deploys:key:order-7"
    assert json.loads(body) == {"order": "7", "idempotency_key": "order-7"}


def test_another_message_under_the_same_key_is_kept_as_a_dead_letter(
    keyed: RedisStream, ledger: Ledger, database_url: str
) -> None:
    publisher = Publisher(keyed)
    publisher.publish(b"one", idempotency_key="k")
    publisher.publish(b"another", idempotency_key="k")
    assert len(ingested(ledger, keyed, database_url)) == 1
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT reason, payload FROM dead_letters").fetchall() == [
            ("id_conflict", b"another")
        ]


def test_a_key_is_refused_where_the_adapter_has_no_place_for_it(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    with pytest.raises(PublishRejected, match="key"):
        Publisher(adapter).publish(b"a", idempotency_key="k")
    assert redis_client.exists("deploys") == 0


def test_a_key_in_a_header_is_the_producers_own_too(keyed: RedisStream, ledger: Ledger, database_url: str) -> None:
    # A producer without our publisher writes the field itself.
    Publisher(keyed).publish(b"a", {"idempotency_key": "k"})
    assert [key for key, _ in ingested(ledger, keyed, database_url)] == ["redis:deploys:key:k"]


@pytest.mark.parametrize("key", ["", "a:b", "käse", "x" * 1000, "with space\n", "\x00"])
def test_whatever_the_key_is_its_retry_is_one_todo(
    keyed: RedisStream, ledger: Ledger, database_url: str, key: str
) -> None:
    publisher = Publisher(keyed)
    for _ in range(2):
        publisher.publish(b"a", idempotency_key=key)
    assert len(ingested(ledger, keyed, database_url)) == 1


def test_a_publish_whose_answer_was_lost_is_tried_again_and_with_a_key_is_one_todo(
    redis_url: str, redis_client: "redis.Redis", ledger: Ledger, database_url: str
) -> None:
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        url = server._replace(netloc=f"{proxy.url_host}:{proxy.port}").geturl()
        with closing(stream(url, key="idempotency_key")) as adapter:
            publisher = Publisher(adapter)
            publisher.publish(b"before")
            proxy.reset_in_reply(3)
            assert publisher.publish(b"a", idempotency_key="k")
    assert redis_client.xlen("deploys") == 3, "the answer was not lost"
    with closing(stream(redis_url, key="idempotency_key")) as adapter:
        bodies = [body for _, body in ingested(ledger, adapter, database_url)]
    assert sorted(bodies) == [b"a", b"before"]


# A broker that is away


def test_a_broker_that_is_away_is_tried_until_the_timeout_and_no_longer(own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    with closing(stream(own_valkey.url)) as adapter:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            Publisher(adapter, timeout=SHORT).publish(b"a")
        # It has waited between tries, whose waits are random; the shortest of all is a thousandth.
        assert 0.05 < time.monotonic() - began < 2


def test_a_broker_that_does_not_answer_is_given_up_in_time(own_valkey: ValkeyServer) -> None:
    with closing(stream(own_valkey.url)) as adapter:
        Publisher(adapter).publish(b"before")
        own_valkey.suspend()
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            Publisher(adapter, timeout=SHORT).publish(b"a")
        # One command's own patience is five seconds.
        assert time.monotonic() - began < 7


def test_a_broker_that_comes_back_meanwhile_has_the_message(own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    with closing(stream(own_valkey.url)) as adapter, ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(Publisher(adapter, timeout=timedelta(seconds=20)).publish, b"a")
        with pytest.raises(TimeoutError):
            publishing.result(timeout=0.5)
        own_valkey.start()
        entry_id = publishing.result(timeout=20)
        with redis.Redis.from_url(own_valkey.url) as client:
            assert client.xrange("deploys") == [(entry_id.encode(), {b"data": b"a"})]


def out_of_memory(client: "redis.Redis") -> Callable[[], object]:
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    return lambda: client.config_set("maxmemory", 0)


def no_replicas(client: "redis.Redis") -> Callable[[], object]:
    client.config_set("min-replicas-to-write", 1)
    return lambda: client.config_set("min-replicas-to-write", 0)


def read_only(client: "redis.Redis") -> Callable[[], object]:
    client.replicaof("127.0.0.1", "1")
    return lambda: client.replicaof("NO", "ONE")


@pytest.mark.parametrize("refuse", [out_of_memory, no_replicas, read_only], ids=lambda refuse: refuse.__name__)
@pytest.mark.parametrize("many", [1, 3])
def test_a_refusal_that_passes_by_itself_is_tried_again_until_it_has(
    own_valkey: ValkeyServer, refuse: Callable[["redis.Redis"], Callable[[], object]], many: int
) -> None:
    messages = [Outgoing(b"a")] * many
    with redis.Redis.from_url(own_valkey.url) as client, closing(stream(own_valkey.url)) as adapter:
        mend = refuse(client)
        with pytest.raises(BrokerUnavailable):
            list(Publisher(adapter, timeout=timedelta(seconds=0.3)).publish_many(messages))
        with ThreadPoolExecutor(1) as thread:
            publishing = thread.submit(
                lambda: list(Publisher(adapter, timeout=timedelta(seconds=20)).publish_many(messages))
            )
            with pytest.raises(TimeoutError):
                publishing.result(timeout=0.3)
            mend()
            assert len(publishing.result(timeout=20)) == many
        assert client.xlen("deploys") == many


# Rejected


@contextmanager
def at_once() -> Iterator[None]:
    """What is inside neither waits nor tries again."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 0.5


def test_a_key_of_another_kind_is_rejected_at_once(adapter: RedisStream, redis_client: "redis.Redis") -> None:
    redis_client.set("deploys", "a string")
    redis_client.config_resetstat()
    with pytest.raises(PublishRejected, match="WRONGTYPE"), at_once():
        Publisher(adapter).publish(b"a")
    assert calls(redis_client, "xadd") == 1


def test_too_few_rights_are_rejected_at_once(redis_url: str, redis_client: "redis.Redis") -> None:
    rules = ["reset", "on", ">s3cret", "~*", "+@all", "-xadd"]
    redis_client.execute_command("ACL", "SETUSER", "reader", *rules)  # type: ignore[no-untyped-call]
    try:
        parts = urlsplit(redis_url)
        url = parts._replace(netloc=f"reader:s3cret@{parts.netloc.rpartition('@')[2]}").geturl()
        redis_client.config_resetstat()
        with closing(stream(url)) as adapter:
            with pytest.raises(PublishRejected, match="xadd") as caught, at_once():
                Publisher(adapter).publish(b"a")
            with pytest.raises(PublishRejected), at_once():
                list(Publisher(adapter).publish_many([Outgoing(b"a")] * 3))
        assert "s3cret" not in str(caught.value)
        assert calls(redis_client, "xadd") == 1 + 3
        assert redis_client.exists("deploys") == 0
    finally:
        redis_client.acl_deluser("reader")


@pytest.mark.parametrize("body", [b'{"a": {"nested": 1}}', b'{"a": [1]}', b'{"a": null}', b"text", b"[]", b"\xff", b""])
def test_without_a_body_field_what_is_no_object_of_texts_and_numbers_is_rejected_unsent(
    redis_url: str, redis_client: "redis.Redis", body: bytes
) -> None:
    redis_client.config_resetstat()
    with closing(stream(redis_url, body="")) as adapter, at_once():
        with pytest.raises(PublishRejected, match="body field"):
            Publisher(adapter).publish(body)
        with pytest.raises(PublishRejected):
            list(Publisher(adapter).publish_many([Outgoing(b'{"a": "1"}'), Outgoing(body)]))
    assert calls(redis_client, "xadd") == 0


def test_a_chunk_with_a_message_that_is_rejected_is_not_sent_at_all_and_those_before_it_are(
    adapter: RedisStream, redis_client: "redis.Redis"
) -> None:
    bad = Outgoing(b"bad", {"data": "the field of the body"})
    messages = [Outgoing(b"%d" % number) for number in range(1400)]
    messages[700] = bad
    published: list[str] = []
    with pytest.raises(PublishRejected):
        published.extend(Publisher(adapter).publish_many(messages))
    entries: Any = redis_client.xrange("deploys")
    stored = [fields[b"data"] for _, fields in entries]
    assert stored == [b"%d" % number for number in range(500)]
    assert len(published) == 500


def test_a_chunk_that_is_cut_off_on_its_way_is_there_whole_or_not_at_all(
    own_valkey: ValkeyServer,
) -> None:
    with (
        redis.Redis.from_url(own_valkey.url) as client,
        closing(stream(own_valkey.url)) as adapter,
        ThreadPoolExecutor(1) as thread,
    ):
        messages = (Outgoing(b"x" * 10_000) for _ in range(20_000))
        publisher = Publisher(adapter, timeout=timedelta(seconds=0.2))
        publishing = thread.submit(lambda: list(publisher.publish_many(messages)))
        eventually(lambda: client.xlen("deploys") >= 1000, every=0.001, what="some are there")
        own_valkey.kill()
        assert isinstance(publishing.exception(timeout=20), BrokerUnavailable)
    own_valkey.start()
    with redis.Redis.from_url(own_valkey.url) as client:
        count = client.xlen("deploys")
    assert count % 500 == 0
    assert 1000 <= count < 20_000


def test_an_error_shows_nothing_of_a_body(redis_url: str, redis_client: "redis.Redis") -> None:
    redis_client.set("s", "a string")
    with closing(stream(redis_url, stream="s")) as adapter, pytest.raises(PublishRejected) as caught:
        Publisher(adapter).publish(b"4111-1111-1111-1111")
    assert "4111" not in str(caught.value)


# The command

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_REDIS_URL}"
stream = "deploys"
queue = "q"
body = "data"
key = "idempotency_key"

[adapters.keyless]
type = "redis-stream"
url = "${DEPLOYS_REDIS_URL}"
stream = "keyless"
queue = "q"
body = "data"

[adapters.jobs]
type = "redis-list"
url = "${DEPLOYS_REDIS_URL}"
list = "jobs"
queue = "q"
"""


def command(folder: Path, url: str, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    (folder / "switchboard.toml").write_text(CONFIG)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWITCHBOARD_", "DATABASE"))}
    done = subprocess.run(
        [sys.executable, "-m", "switchboard.cli", "publish", *arguments],
        cwd=folder,
        env=kept | {"DEPLOYS_REDIS_URL": url},
        input=stdin,
        capture_output=True,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    return done


def test_the_command_with_a_key_run_twice_is_one_todo(
    tmp_path: Path, redis_url: str, keyed: RedisStream, ledger: Ledger, database_url: str
) -> None:
    for _ in range(2):
        done = command(tmp_path, redis_url, "deploys", "--key", "order-7", stdin=b'{"order": 7}')
        assert (done.returncode, done.stderr) == (0, b"")
    assert ingested(ledger, keyed, database_url) == [("redis:deploys:key:order-7", b'{"order": 7}')]


@pytest.mark.parametrize("name", ["keyless", "jobs"])
def test_the_command_says_where_a_key_has_no_place_and_fails(
    tmp_path: Path, redis_url: str, redis_client: "redis.Redis", name: str
) -> None:
    done = command(tmp_path, redis_url, name, "--key", "order-7", stdin=b"{}")
    assert done.returncode == 1
    assert b"key" in done.stderr
    assert redis_client.exists(name) == 0


def test_one_key_for_many_lines_is_wrong_use(tmp_path: Path, redis_url: str, redis_client: "redis.Redis") -> None:
    done = command(tmp_path, redis_url, "deploys", "--lines", "--key", "k", stdin=b"a\nb\n")
    assert done.returncode == 2
    assert redis_client.exists("deploys") == 0


def test_the_command_gives_up_after_its_timeout_with_status_1(tmp_path: Path, own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    done = command(tmp_path, own_valkey.url, "deploys", "--timeout", "0.5", stdin=b"{}")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
