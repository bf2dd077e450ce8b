"""The concurrency suite, which stands for a race detector. It is run by itself, in Python's development mode:

    python -X dev -m pytest tests/concurrency

A worker runs within this process, and its threads are switched as often as Python can. Whatever thread, connection
or file is left behind fails the test; so does a ResourceWarning, as every warning is an error here.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dramatiq
import psycopg
import pytest
import redis
from dramatiq.worker import Worker
from proxy import Proxy
from waiting import eventually

import switchboard
from switchboard.embedded import PostgresServer, ValkeyServer

pytestmark = pytest.mark.timeout(170)

MESSAGES = 3_000
THREADS = 8
NAMES = ("north", "south", "west")

Running = Callable[[], AbstractContextManager[Worker]]


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def source(own_valkey: ValkeyServer) -> Iterator[Any]:
    with redis.Redis.from_url(own_valkey.url) as client:
        client.ping()
        yield client


@pytest.fixture
def ledger(own_postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def source_proxy(own_valkey: ValkeyServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own_valkey.port) as proxy:
        yield proxy


@pytest.fixture
def ledger_proxy(own_postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own_postgres.port) as proxy:
        yield proxy


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch,
    source: Any,
    ledger: psycopg.Connection,
    source_proxy: Proxy,
    ledger_proxy: Proxy,
    nothing_left_behind: None,
) -> Running:
    """Starts a worker in this process; it reaches both servers through the proxies."""
    monkeypatch.setenv("DATABASE_URL", f"postgresql://postgres@{ledger_proxy.url_host}:{ledger_proxy.port}/postgres")
    monkeypatch.delenv("SWITCHBOARD_CONFIG", raising=False)
    # Importing switchboard.actors declares its actors on the broker that is set then.
    monkeypatch.setattr(dramatiq.broker, "global_broker", switchboard.StubBroker())
    from switchboard.actors.ingest import declare_ingest

    url = f"redis://{source_proxy.url_host}:{source_proxy.port}/0"

    @contextmanager
    def running() -> Iterator[Worker]:
        broker = switchboard.StubBroker()
        monkeypatch.setattr(dramatiq.broker, "global_broker", broker)
        for name in NAMES:
            adapter = switchboard.RedisStream(name, url=url, stream=name, queue="work", batch=20, claim_idle="2s")
            broker.add_adapter(adapter)
            declare_ingest(broker, adapter)
        worker = Worker(broker, worker_threads=THREADS, worker_timeout=200)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()
            broker.close()

    return running


def publish(source: Any, count: int) -> list[str]:
    """So many messages on each stream, from a thread for each; their idempotency keys."""
    keys: list[str] = []

    def one(name: str) -> None:
        # A client of its own: the pool of the other would keep each thread's connection open.
        with redis.Redis(port=source.get_connection_kwargs()["port"]) as mine, mine.pipeline(False) as pipeline:
            for number in range(count):
                pipeline.xadd(name, {"number": number})
            ids = pipeline.execute()
        keys.extend(f"redis:{name}:{entry_id.decode()}" for entry_id in ids)

    threads = [threading.Thread(target=one, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return keys


def stored(ledger: psycopg.Connection) -> int:
    [count] = ledger.execute("SELECT count(*) FROM todos").fetchone() or [0]
    return int(count)


def unacknowledged(source: Any) -> int:
    """What is pending or was never read, in all groups."""
    left = 0
    for name in NAMES:
        for group in source.xinfo_groups(name):
            left += group["pending"] + (group["lag"] or 0)
    return left


def settle(source: Any, ledger: psycopg.Connection, keys: list[str]) -> None:
    eventually(
        lambda: stored(ledger) >= len(keys) and not unacknowledged(source),
        within=30,
        what="all is stored, none pending",
    )
    found = [key for (key,) in ledger.execute("SELECT idempotency_key FROM todos")]
    assert sorted(found) == sorted(keys)
    assert ledger.execute("SELECT reason FROM dead_letters").fetchall() == []


def test_many_threads_store_each_message_once_and_leave_nothing_behind(
    start: Running, source: Any, ledger: psycopg.Connection
) -> None:
    keys = publish(source, MESSAGES // len(NAMES))
    with start():
        settle(source, ledger, keys)


def test_adapters_are_toggled_and_connections_cut_while_many_threads_store(
    start: Running, source: Any, ledger: psycopg.Connection, source_proxy: Proxy, ledger_proxy: Proxy
) -> None:
    chance = random.Random(13)
    keys: list[str] = []
    rounds = 50
    with start():
        for _ in range(rounds):
            keys += publish(source, MESSAGES // rounds // len(NAMES))
            name = chance.choice(NAMES)
            ledger.execute("UPDATE adapters SET enabled = NOT enabled WHERE name = %s", [name])
            # An adapter that is off may hold up the rest of a round: then the next one comes all the same.
            until_moved_or_idle(ledger, stored(ledger) + chance.randrange(1, 30))
            chance.choice([source_proxy, ledger_proxy]).cut()
        ledger.execute("UPDATE adapters SET enabled = true")
        settle(source, ledger, keys)


def test_the_sources_connections_are_cut_again_and_again_while_many_threads_acknowledge(
    start: Running, source: Any, ledger: psycopg.Connection, source_proxy: Proxy
) -> None:
    keys: list[str] = []
    rounds = 60
    with start():
        for _ in range(rounds):
            keys += publish(source, MESSAGES // rounds // len(NAMES))
            until_moved_or_idle(ledger, stored(ledger) + 1)
            source_proxy.cut()
        settle(source, ledger, keys)


def test_stopped_in_the_middle_and_started_again_loses_and_repeats_nothing(
    start: Running, source: Any, ledger: psycopg.Connection, ledger_proxy: Proxy
) -> None:
    keys = publish(source, MESSAGES // len(NAMES))
    for part in (1, 2):
        with start():
            wait_stored(ledger, part * 200)
            ledger_proxy.cut()
    with start():
        settle(source, ledger, keys)


def test_stopped_while_both_servers_answer_nothing_ends_every_thread(
    start: Running, source: Any, ledger: psycopg.Connection, source_proxy: Proxy, ledger_proxy: Proxy
) -> None:
    keys = publish(source, 300)
    with start():
        wait_stored(ledger, 1)
        source_proxy.stall()
        ledger_proxy.stall()
    for proxy in (source_proxy, ledger_proxy):
        proxy.cut()
        proxy.flow()
    with start():
        settle(source, ledger, keys)


def wait_stored(ledger: psycopg.Connection, count: int) -> None:
    eventually(lambda: stored(ledger) >= count, within=30, what=f"{count} are stored")


def until_moved_or_idle(ledger: psycopg.Connection, moved: int) -> None:
    """Returns when so many are stored, or after twenty looks."""
    looks = iter(range(20))
    eventually(lambda: stored(ledger) >= moved or next(looks, None) is None, within=30, every=0.02)
