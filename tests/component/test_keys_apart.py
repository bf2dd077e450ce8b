"""Two adapters whose keys could be equal in one todo queue still make two todos (design, "Keys apart")."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
import redis

from switchboard import ingest
from switchboard.ledger import AdapterRow, Ledger, list_adapters, migrate, set_adapter_enabled, upsert_adapter
from switchboard.model import Delivery, Route
from switchboard.normalize import resolve_provider
from switchboard.pull import RedisStream

GENERIC = resolve_provider("generic")


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url, max_size=20)) as ledger:
        migrate(ledger)
        yield ledger


def register(ledger: Ledger, name: str, *, queue: str = "work", stream: str = "deploys") -> AdapterRow:
    with ledger.transaction() as tx:
        return upsert_adapter(
            tx.connection,
            name=name,
            family="queue",
            trust_mode="queue",
            queue=queue,
            namespace=f"redis:{stream}",
            config={"type": "redis-stream", "stream": stream},
        )


def store(ledger: Ledger, row: AdapterRow, *deliveries: Delivery) -> None:
    route = Route(adapter=row.name, queue=str(row.config["queue"]), key_prefix=row.key_prefix)
    with ledger.transaction() as tx:
        ingest.store(tx.connection, route, GENERIC, deliveries)


def keys(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT idempotency_key FROM todos ORDER BY id")]


def test_one_id_in_streams_of_one_name_on_two_servers_makes_two_todos(
    ledger: Ledger, database_url: str, redis_url: str, redis_client: "redis.Redis"
) -> None:
    # Given two streams of the same name, here in two databases of one server, with an entry of the same id each
    other_url = redis_url.rsplit("/", 1)[0] + "/0"
    if redis_url == other_url:
        other_url = redis_url.rsplit("/", 1)[0] + "/15"
    with (
        redis.Redis.from_url(other_url) as other_client,
        closing(RedisStream("east", url=redis_url, stream="keys-apart", queue="work")) as east,
        closing(RedisStream("west", url=other_url, stream="keys-apart", queue="work")) as west,
    ):
        try:
            for client in (redis_client, other_client):
                client.xadd("keys-apart", {"same": "body"}, id="7-7")
            for adapter in (east, west):
                row = register(ledger, adapter.name, stream="keys-apart")
                assert adapter.namespace == "redis:keys-apart"
                for _ in range(2):
                    store(ledger, row, *adapter.receive(10, 10**6, timedelta(milliseconds=100)))
        finally:
            other_client.delete("keys-apart")
    assert keys(database_url) == ["redis:keys-apart:7-7", "redis:keys-apart@west:7-7"]


def test_the_first_gets_the_plain_prefix_and_the_second_one_that_carries_its_name(ledger: Ledger) -> None:
    assert register(ledger, "east").key_prefix == "redis:deploys"
    assert "west" in register(ledger, "west").key_prefix
    prefixes = {register(ledger, name).key_prefix for name in ("east", "west", "north", "south")}
    assert len(prefixes) == 4


def test_in_another_queue_or_from_another_stream_the_prefix_is_plain(ledger: Ledger) -> None:
    register(ledger, "east")
    assert register(ledger, "west", queue="other").key_prefix == "redis:deploys"
    assert register(ledger, "north", stream="orders").key_prefix == "redis:orders"


def test_a_prefix_once_decided_stays_whoever_starts_first(ledger: Ledger) -> None:
    first, second = register(ledger, "east").key_prefix, register(ledger, "west").key_prefix
    assert register(ledger, "west").key_prefix == second
    assert register(ledger, "east").key_prefix == first
    assert register(ledger, "west").key_prefix == second


def test_a_prefix_once_decided_stays_when_the_other_is_gone(ledger: Ledger, database_url: str) -> None:
    register(ledger, "east")
    row = register(ledger, "west")
    delivery = Delivery(b"{}", "1-0", "redis acl: default")
    store(ledger, row, delivery)
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM adapters WHERE name = 'east'")
    again = register(ledger, "west")
    store(ledger, again, delivery)
    assert len(keys(database_url)) == 1
    assert again.key_prefix == row.key_prefix


def test_the_plain_prefix_of_one_that_is_gone_goes_to_nobody_while_its_row_is_there(ledger: Ledger) -> None:
    register(ledger, "east")
    with ledger.transaction() as tx:
        set_adapter_enabled(tx.connection, "east", False)
    assert register(ledger, "west").key_prefix != "redis:deploys"


def test_a_name_made_to_look_like_anothers_prefix_gets_one_of_its_own(ledger: Ledger) -> None:
    rows = [
        register(ledger, "a"),
        register(ledger, "b", stream="deploys@c"),
        register(ledger, "c"),
        register(ledger, "d", stream="deploys@c"),
        register(ledger, "c", stream="deploys@c"),
    ]
    latest = {row.name: row.key_prefix for row in rows}
    assert len(set(latest.values())) == len(latest)


def test_a_stream_whose_name_extends_anothers_makes_no_equal_key(ledger: Ledger, database_url: str) -> None:
    # "redis:a" with the id "1:2-0" would be "redis:a:1" with "2-0", were ids not the server's own.
    store(ledger, register(ledger, "east", stream="a"), Delivery(b"{}", "2-0", ""))
    store(ledger, register(ledger, "west", stream="a:1"), Delivery(b"{}", "2-0", ""))
    assert len(set(keys(database_url))) == 2


def test_many_that_register_together_all_get_prefixes_of_their_own(ledger: Ledger) -> None:
    names = [f"adapter-{number}" for number in range(10)]
    together = threading.Barrier(len(names))

    def start(name: str) -> str:
        together.wait(10)
        return register(ledger, name).key_prefix

    with ThreadPoolExecutor(len(names)) as threads:
        prefixes = list(threads.map(start, names))
    with ledger.transaction() as tx:
        rows = {row.name: row.key_prefix for row in list_adapters(tx.connection)}
    assert rows == dict(zip(names, prefixes, strict=True))
    assert len(set(prefixes)) == len(names)
    assert prefixes.count("redis:deploys") == 1


def test_many_processes_that_register_one_adapter_together_agree(ledger: Ledger) -> None:
    register(ledger, "east")
    together = threading.Barrier(10)

    def start(_: int) -> str:
        together.wait(10)
        return register(ledger, "west").key_prefix

    with ThreadPoolExecutor(10) as threads:
        assert len(set(threads.map(start, range(10)))) == 1
